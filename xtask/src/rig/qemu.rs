//! Starts the emulated host and follows its report until it ends.
//!
//! Owner: [`Machine`] owns the QEMU process and kills it when dropped. A reader thread
//! owns its standard output, which is the host's second serial port, and passes lines
//! on by a channel. States: running, reported done, ended.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rig_wire::Event;

/// The emulator's program.
pub(super) const PROGRAM: &str = "qemu-system-x86_64";
/// Any crash of the host's kernel must end the machine, not only its victim. The first
/// process brings the other pCPUs up: see `bring_up.rs` there. A given length of the
/// delay loop, which only emulated devices rely on, saves a second of measuring it.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=-1 oops=panic mitigations=off maxcpus=1 lpj=12000000";
/// How long the host may take to power off after it reported everything.
const POWER_OFF: Duration = Duration::from_secs(20);
/// How often a silent host is looked at.
const TICK: Duration = Duration::from_millis(200);

/// What to start.
#[derive(Debug)]
pub(super) struct Hardware {
    /// The host's bzImage.
    pub(super) kernel: PathBuf,
    /// Its file system.
    pub(super) initramfs: PathBuf,
    /// Where its console goes.
    pub(super) console: PathBuf,
    /// Its pCPUs.
    pub(super) pcpus: u32,
    /// Its memory, in MiB.
    pub(super) memory_mib: u32,
}

/// Why the host ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostEnd {
    /// It reported everything and powered off.
    PoweredOff,
    /// It reported everything and went on running.
    StillOn,
    /// It was gone before it had reported everything.
    Gone(String),
    /// It ran into the time limit.
    TimedOut,
    /// It sent a line that is no event.
    Garbled(String),
}

/// The first line of `qemu-system-x86_64 --version`; nothing if there is no QEMU.
pub(super) fn version() -> io::Result<Option<String>> {
    match Command::new(PROGRAM).arg("--version").output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Hardware {
    /// QEMU and its arguments.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max,+svm"])
            .args(["-smp", &self.pcpus.to_string(), "-m", &self.memory_mib.to_string()])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initramfs)
            .args(["-append", COMMAND_LINE])
            .arg("-chardev")
            .arg(format!("file,id=console,path={}", option_value(&self.console)))
            .args(["-serial", "chardev:console"])
            .args(["-chardev", "stdio,id=report,signal=off", "-serial", "chardev:report"]);
        command
    }
}

/// QEMU ends an option's value at a single comma.
fn option_value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// A running host.
pub(super) struct Machine {
    child: Child,
    lines: Receiver<String>,
    deadline: Instant,
}

impl Machine {
    /// Starts `command`, whose standard output is the report.
    pub(super) fn start(mut command: Command, limit: Duration) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let (sender, lines) = channel();
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines, deadline: Instant::now() + limit })
    }

    /// Passes each event to `see`, and nothing at every tick of silence, until the
    /// host ends.
    pub(super) fn follow(&mut self, mut see: impl FnMut(Option<Event>)) -> HostEnd {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return HostEnd::TimedOut;
            }
            match self.lines.recv_timeout(left.min(TICK)) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(Event::Done) => {
                        see(Some(Event::Done));
                        return self.power_off();
                    }
                    Ok(event) => see(Some(event)),
                    Err(_) => return HostEnd::Garbled(line),
                },
                Err(RecvTimeoutError::Timeout) => see(None),
                Err(RecvTimeoutError::Disconnected) => return self.gone(),
            }
        }
    }

    fn power_off(&mut self) -> HostEnd {
        match self.wait(POWER_OFF) {
            Ok(Some(status)) if status.success() => HostEnd::PoweredOff,
            Ok(Some(status)) => HostEnd::Gone(format!("QEMU ended with {status}")),
            Ok(None) => HostEnd::StillOn,
            Err(error) => HostEnd::Gone(format!("QEMU cannot be waited for: {error}")),
        }
    }

    fn gone(&mut self) -> HostEnd {
        HostEnd::Gone(match self.wait(POWER_OFF) {
            Ok(Some(status)) => format!("QEMU ended with {status}"),
            Ok(None) => "QEMU closed the report".to_owned(),
            Err(error) => format!("QEMU cannot be waited for: {error}"),
        })
    }

    fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= deadline {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in for QEMU that prints `script`'s output as the report.
    fn follow(script: &str, limit: Duration) -> (Vec<Event>, HostEnd) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut machine = Machine::start(command, limit).unwrap();
        let mut events = Vec::new();
        let end = machine.follow(|event| events.extend(event));
        (events, end)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_host_that_says_done_and_ends_has_powered_off() {
        let (events, end) = follow(r#"echo '{"event":"done"}'"#, LONG);
        assert_eq!((events, end), (vec![Event::Done], HostEnd::PoweredOff));
    }

    #[test]
    fn a_host_that_ends_without_done_is_gone() {
        let (events, end) = follow(r#"echo '{"event":"started","step":0}'; exit 3"#, LONG);
        assert_eq!(events, [Event::Started { step: 0 }]);
        assert!(matches!(&end, HostEnd::Gone(why) if why.contains('3')), "{end:?}");
    }

    #[test]
    fn a_silent_host_meets_the_limit() {
        let (_, end) = follow("exec sleep 600", Duration::from_millis(300));
        assert_eq!(end, HostEnd::TimedOut);
    }

    #[test]
    fn a_line_that_is_no_event_is_shown() {
        let (_, end) = follow("echo Oops; exec sleep 600", LONG);
        assert_eq!(end, HostEnd::Garbled("Oops".into()));
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        let hardware = Hardware {
            kernel: "k".into(),
            initramfs: "i".into(),
            console: "a,b".into(),
            pcpus: 2,
            memory_mib: 64,
        };
        let arguments: Vec<_> = hardware.command().get_args().map(|a| a.to_owned()).collect();
        assert!(arguments.iter().any(|argument| argument == "file,id=console,path=a,,b"));
    }
}
