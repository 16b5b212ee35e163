//! Which release each entry of the fetch list means today.
//!
//! No state: a list and the archive's package names go in, choices come out.

use serde::Deserialize;

/// The start of the names of Debian's kernel packages.
pub(crate) const IMAGE_PREFIX: &str = "linux-image-";

/// What is wrong with the fetch list, or with what is asked of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChoiceError {
    #[error("Cannot parse the fetch list")]
    Parse(#[from] toml::de::Error),
    #[error("No kernel {asked:?} in the fetch list: expected one of {known}")]
    UnknownName { asked: String, known: String },
    #[error("Kernel {name:?} has the series {series:?}: expected two numbers such as \"6.12\"")]
    Series { name: String, series: String },
}

/// The fetch list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FetchList {
    /// Debian suites to look into.
    pub(crate) suites: Vec<String>,
    /// The kernels wanted.
    #[serde(rename = "kernel")]
    pub(crate) kernels: Vec<Wanted>,
}

/// One entry of the fetch list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// Its name in this project, and its folder in the cache.
    pub(crate) name: String,
    oldest: String,
    newest: String,
    flavour: String,
    /// Modules to keep, with all that they depend on.
    pub(crate) modules: Vec<String>,
}

impl FetchList {
    /// Parses a list and keeps the entries called `names`, or all if none is named.
    pub(crate) fn parse(text: &str, names: &[String]) -> Result<Self, ChoiceError> {
        let mut list: Self = toml::from_str(text)?;
        let known: Vec<_> = list.kernels.iter().map(|kernel| kernel.name.clone()).collect();
        if let Some(asked) = names.iter().find(|name| !known.contains(name)) {
            let known = known.join(", ");
            return Err(ChoiceError::UnknownName { asked: asked.clone(), known });
        }
        list.kernels.retain(|kernel| names.is_empty() || names.contains(&kernel.name));
        Ok(list)
    }
}

impl Wanted {
    /// The newest release among the packages called `names` that this entry allows,
    /// as `uname -r` says it; nothing if there is none.
    pub(crate) fn newest_of<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Option<String>, ChoiceError> {
        let range = self.series(&self.oldest)?..=self.series(&self.newest)?;
        Ok(names
            .into_iter()
            .filter_map(|name| {
                let release = name.strip_prefix(IMAGE_PREFIX)?;
                let number = number(release, &self.flavour)?;
                let in_range = range.contains(&(number.major, number.minor));
                in_range.then_some((number, release))
            })
            .max()
            .map(|(_, release)| release.to_owned()))
    }

    fn series(&self, series: &str) -> Result<(u32, u32), ChoiceError> {
        let parsed = series
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parsed.ok_or_else(|| ChoiceError::Series {
            name: self.name.clone(),
            series: series.to_owned(),
        })
    }
}

/// A release in the order in which kernels appear.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    major: u32,
    minor: u32,
    patch: u32,
    /// Debian release that it was built for, 0 if the name does not say.
    debian: u32,
}

/// Reads `7.3.4+deb13-cloud-amd64` with the flavour `cloud-amd64`. Release
/// candidates, other flavours and unsigned twins are nothing.
fn number(release: &str, flavour: &str) -> Option<Number> {
    let version = release.strip_suffix(flavour)?.strip_suffix('-')?;
    let (upstream, debian) = match version.split_once("+deb") {
        Some((upstream, debian)) => (upstream, debian.parse().ok()?),
        None => (version, 0),
    };
    let mut parts = upstream.split('.').map(str::parse);
    let number = Number {
        major: parts.next()?.ok()?,
        minor: parts.next()?.ok()?,
        patch: parts.next().unwrap_or(Ok(0)).ok()?,
        debian,
    };
    parts.next().is_none().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 9] = [
        "linux-image-6.12.9+deb13-cloud-amd64",
        "linux-image-6.12.117+deb13-cloud-amd64",
        "linux-image-6.12.117+deb13-cloud-amd64-unsigned",
        "linux-image-6.12.118+deb13-amd64",
        "linux-image-6.18.15+deb13-cloud-amd64",
        "linux-image-7.2.13+deb14-cloud-amd64",
        "linux-image-7.3.4+deb13-cloud-amd64",
        "linux-image-7.4~rc2-cloud-amd64",
        "linux-image-cloud-amd64",
    ];

    fn wanted(oldest: &str, newest: &str, flavour: &str) -> Wanted {
        Wanted {
            name: "test".into(),
            oldest: oldest.into(),
            newest: newest.into(),
            flavour: flavour.into(),
            modules: Vec::new(),
        }
    }

    fn newest(oldest: &str, newest: &str, flavour: &str) -> Option<String> {
        wanted(oldest, newest, flavour).newest_of(NAMES).unwrap()
    }

    #[test]
    fn patch_levels_are_compared_as_numbers() {
        let release = newest("6.12", "6.12", "cloud-amd64").unwrap();
        assert_eq!(release, "6.12.117+deb13-cloud-amd64");
    }

    #[test]
    fn a_flavour_is_the_whole_rest_of_the_name() {
        assert_eq!(newest("6.12", "6.12", "amd64").unwrap(), "6.12.118+deb13-amd64");
    }

    #[test]
    fn a_range_takes_its_newest_series_and_no_release_candidate() {
        assert_eq!(newest("7.0", "7.999", "cloud-amd64").unwrap(), "7.3.4+deb13-cloud-amd64");
        assert_eq!(newest("6.16", "6.18", "cloud-amd64").unwrap(), "6.18.15+deb13-cloud-amd64");
    }

    #[test]
    fn a_series_that_nobody_offers_is_nothing() {
        assert_eq!(newest("6.13", "6.17", "cloud-amd64"), None);
    }

    #[test]
    fn a_later_debian_release_wins_between_equal_versions() {
        let names = ["linux-image-7.2.13+deb14-amd64", "linux-image-7.2.13+deb13-amd64"];
        let release = wanted("7.2", "7.2", "amd64").newest_of(names).unwrap();
        assert_eq!(release.unwrap(), "7.2.13+deb14-amd64");
    }

    #[test]
    fn a_series_that_is_no_number_is_named() {
        let error = wanted("6.12", "six", "amd64").newest_of(NAMES).unwrap_err();
        assert!(error.to_string().contains("\"six\""), "{error}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = FetchList::parse(crate::kernels::FETCH_LIST, &["5.10".to_owned()]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"5.10\"") && text.contains("6.12"), "{text}");
    }

    #[test]
    fn the_list_of_this_repository_parses_and_narrows_to_a_name() {
        let list = FetchList::parse(crate::kernels::FETCH_LIST, &["7".to_owned()]).unwrap();
        let names: Vec<_> = list.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["7"]);
        for kernel in &list.kernels {
            kernel.newest_of(NAMES).unwrap();
        }
    }
}
