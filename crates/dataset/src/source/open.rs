//! From a URL to a store.
//!
//! What stands in a URL is seen by each reader of the URL, so that only what is no secret may stand there;
//! credentials come from the settings, under the names that the tools of each cloud use.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use url::Url;

use super::error::{SourceError, SourceErrorKind};
use super::{Settings, Source, SourceRetryPolicy};

/// Options of a URL: the name there, the library's name, and the library's form of the value.
#[cfg(feature = "cloud")]
type Known = (&'static str, &'static str, fn(&str) -> String);

/// See [`Source::open`].
pub fn open(url: &str, settings: &Settings, policy: &SourceRetryPolicy) -> Result<Source, SourceError> {
    let shown = url.split(['?', '#']).next().unwrap_or(url).trim_end_matches('/');
    // What stands before an @ may be a password.
    let shown = match (shown.split_once("://"), shown.split_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        _ => shown.to_owned(),
    };
    let failed = |kind| SourceError::new(shown.clone(), kind);
    if !url.contains("://") {
        return local(PathBuf::from(url), shown.clone()).map_err(failed);
    }
    let parsed = Url::parse(url).map_err(|error| failed(SourceErrorKind::Url(error.to_string())))?;
    if parsed.scheme() == "file" {
        let folder = parsed.to_file_path();
        let folder =
            folder.map_err(|()| failed(SourceErrorKind::Url("file:// takes an absolute path".to_owned())))?;
        return local(folder, shown.clone()).map_err(failed);
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(failed(SourceErrorKind::Url("a URL must not hold a user or password".to_owned())));
    }
    let root = Path::from_url_path(parsed.path())
        .map_err(|error| failed(SourceErrorKind::Url(error.to_string())))?;
    let store = remote(&parsed, settings, policy).map_err(failed)?;
    Ok(Source { url: shown, store, root, folder: None })
}

/// See [`Source::open_away`]: nothing unless it is a local folder that is away.
pub fn open_away(url: &str) -> Option<Source> {
    let shown = url.trim_end_matches('/');
    let folder = match shown.strip_prefix("file://") {
        Some(_) => Url::parse(shown).ok()?.to_file_path().ok()?,
        None if shown.contains("://") => return None,
        None => PathBuf::from(shown),
    };
    if folder.exists() {
        return None;
    }
    // The store that begins at the folder itself wants it to be there.
    let root = Path::from_absolute_path(std::path::absolute(&folder).ok()?).ok()?;
    let store = Arc::new(LocalFileSystem::new());
    Some(Source { url: shown.to_owned(), store, root, folder: Some(PathBuf::from("/")) })
}

fn local(folder: PathBuf, url: String) -> Result<Source, SourceErrorKind> {
    std::fs::read_dir(&folder).map_err(SourceErrorKind::of_disk)?;
    let store = LocalFileSystem::new_with_prefix(&folder).map_err(SourceErrorKind::of)?;
    Ok(Source { url, store: Arc::new(store), root: Path::default(), folder: Some(folder) })
}

fn remote(
    url: &Url,
    settings: &Settings,
    policy: &SourceRetryPolicy,
) -> Result<Arc<dyn ObjectStore>, SourceErrorKind> {
    // Without a feature that asks for them they are not asked for.
    let _ = (settings, policy);
    match url.scheme() {
        #[cfg(feature = "s3")]
        "s3" | "s3a" | "s3n" => cloud::s3(url, settings, policy),
        #[cfg(feature = "gcs")]
        "gs" => cloud::gcs(url, settings, policy),
        #[cfg(feature = "azure")]
        "az" | "abfs" | "abfss" => cloud::azure(url, settings, policy),
        #[cfg(feature = "http")]
        "http" | "https" => cloud::http(url, policy),
        #[cfg(feature = "hdfs")]
        "hdfs" => hdfs(url, policy),
        #[cfg(not(feature = "s3"))]
        "s3" | "s3a" | "s3n" => Err(SourceErrorKind::NotBuiltIn("s3")),
        #[cfg(not(feature = "gcs"))]
        "gs" => Err(SourceErrorKind::NotBuiltIn("gcs")),
        #[cfg(not(feature = "azure"))]
        "az" | "abfs" | "abfss" => Err(SourceErrorKind::NotBuiltIn("azure")),
        #[cfg(not(feature = "http"))]
        "http" | "https" => Err(SourceErrorKind::NotBuiltIn("http")),
        #[cfg(not(feature = "hdfs"))]
        "hdfs" => Err(SourceErrorKind::NotBuiltIn("hdfs")),
        scheme => {
            let schemes = "file, s3, gs, az, http, https, hdfs";
            Err(SourceErrorKind::Url(format!("no source has the scheme {scheme}; there are {schemes}")))
        }
    }
}

/// With the configuration of Hadoop that `HADOOP_CONF_DIR` names, but for how long a server is waited for.
#[cfg(feature = "hdfs")]
fn hdfs(url: &Url, policy: &SourceRetryPolicy) -> Result<Arc<dyn ObjectStore>, SourceErrorKind> {
    let longest = policy.retry_time / u32::try_from(policy.retries.max(1)).unwrap_or(u32::MAX);
    let config = [
        ("dfs.client.socket-timeout", policy.answer_time.as_millis().to_string()),
        ("dfs.client.failover.max.attempts", policy.retries.to_string()),
        ("dfs.client.failover.sleep.max.millis", longest.as_millis().to_string()),
    ];
    let store = hdfs_native_object_store::HdfsObjectStoreBuilder::new()
        .with_url(&url[..url::Position::BeforePath])
        .with_config(config.map(|(name, value)| (name.to_owned(), value)))
        .build();
    Ok(Arc::new(store.map_err(SourceErrorKind::of)?))
}

#[cfg(feature = "cloud")]
mod cloud {
    //! The stores that are reached over HTTP.

    use std::str::FromStr;
    use std::sync::Arc;

    use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
    use url::Url;

    use super::super::{Settings, SourceRetryPolicy};
    use super::{Known, SourceErrorKind};

    type Opened = Result<Arc<dyn ObjectStore>, SourceErrorKind>;

    #[cfg(feature = "s3")]
    pub fn s3(url: &Url, settings: &Settings, policy: &SourceRetryPolicy) -> Opened {
        use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
        let known: [Known; 4] = [
            ("endpoint", "endpoint", str::to_owned),
            ("region", "region", str::to_owned),
            ("path_style", "virtual_hosted_style_request", opposite),
            ("anonymous", "skip_signature", str::to_owned),
        ];
        let mut builder = AmazonS3Builder::new();
        for (name, value) in chosen(settings, "aws_") {
            if let Ok(key) = AmazonS3ConfigKey::from_str(&name) {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_url(bare(url));
        for (name, value) in options(url, &known)? {
            builder = builder.with_config(key::<AmazonS3ConfigKey>(&name)?, value);
        }
        let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
            .iter()
            .find_map(|key| builder.get_config_value(key));
        let client = client(policy, endpoint.is_some_and(|endpoint| endpoint.starts_with("http:")));
        let store = builder.with_retry(retries(policy)).with_client_options(client).build();
        Ok(Arc::new(store.map_err(of_building)?))
    }

    #[cfg(feature = "gcs")]
    pub fn gcs(url: &Url, settings: &Settings, policy: &SourceRetryPolicy) -> Opened {
        use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
        let known: [Known; 2] =
            [("endpoint", "google_base_url", str::to_owned), ("anonymous", "skip_signature", str::to_owned)];
        let mut builder = GoogleCloudStorageBuilder::new();
        for (name, value) in chosen(settings, "google_") {
            if let Ok(key) = GoogleConfigKey::from_str(&name) {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_url(bare(url));
        for (name, value) in options(url, &known)? {
            builder = builder.with_config(key::<GoogleConfigKey>(&name)?, value);
        }
        let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
        let client = client(policy, endpoint.is_some_and(|endpoint| endpoint.starts_with("http:")));
        let store = builder.with_retry(retries(policy)).with_client_options(client).build();
        Ok(Arc::new(store.map_err(of_building)?))
    }

    #[cfg(feature = "azure")]
    pub fn azure(url: &Url, settings: &Settings, policy: &SourceRetryPolicy) -> Opened {
        use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
        let known: [Known; 3] = [
            ("account", "azure_storage_account_name", str::to_owned),
            ("endpoint", "azure_storage_endpoint", str::to_owned),
            ("anonymous", "skip_signature", str::to_owned),
        ];
        let mut builder = MicrosoftAzureBuilder::new();
        for (name, value) in chosen(settings, "azure_") {
            if let Ok(key) = AzureConfigKey::from_str(&name) {
                builder = builder.with_config(key, value);
            }
        }
        builder = builder.with_url(bare(url));
        for (name, value) in options(url, &known)? {
            builder = builder.with_config(key::<AzureConfigKey>(&name)?, value);
        }
        let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
        let client = client(policy, endpoint.is_some_and(|endpoint| endpoint.starts_with("http:")));
        let store = builder.with_retry(retries(policy)).with_client_options(client).build();
        Ok(Arc::new(store.map_err(of_building)?))
    }

    #[cfg(feature = "http")]
    pub fn http(url: &Url, policy: &SourceRetryPolicy) -> Opened {
        options(url, &[])?;
        let store = object_store::http::HttpBuilder::new()
            .with_url(&url[..url::Position::BeforePath])
            .with_retry(retries(policy))
            .with_client_options(client(policy, url.scheme() == "http"))
            .build();
        Ok(Arc::new(store.map_err(of_building)?))
    }

    /// The settings that concern a store, in small letters.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    fn chosen<'a>(settings: &'a Settings, begin: &'a str) -> impl Iterator<Item = (String, String)> + 'a {
        let small = settings.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        small.filter(move |(name, _)| name.starts_with(begin))
    }

    /// The options of a URL under the library's names.
    fn options(url: &Url, known: &[Known]) -> Result<Vec<(String, String)>, SourceErrorKind> {
        let names = || known.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
        let option = |(name, value): (std::borrow::Cow<'_, str>, std::borrow::Cow<'_, str>)| {
            let found = known.iter().find(|(known, ..)| *known == name);
            let (_, theirs, told) = found.ok_or_else(|| SourceErrorKind::Setting {
                name: name.chars().take(64).collect(),
                why: match known {
                    [] => "such a URL has no options".to_owned(),
                    _ => format!(
                        "no option of such a URL; there are {}; credentials belong in the environment",
                        names()
                    ),
                },
            })?;
            Ok(((*theirs).to_owned(), told(&value)))
        };
        url.query_pairs().map(option).collect()
    }

    fn bare(url: &Url) -> String {
        url[..url::Position::AfterPath].to_owned()
    }

    fn key<K: FromStr<Err = object_store::Error>>(name: &str) -> Result<K, SourceErrorKind> {
        name.parse().map_err(of_building)
    }

    #[cfg(feature = "s3")]
    fn opposite(value: &str) -> String {
        (value != "true").to_string()
    }

    fn of_building(error: object_store::Error) -> SourceErrorKind {
        SourceErrorKind::Url(error.to_string())
    }

    /// How often and how long the library tries a request again.
    fn retries(policy: &SourceRetryPolicy) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: policy.retries,
            retry_timeout: policy.retry_time,
        }
    }

    /// A file is read as slowly as it is built: only silence is timed, not the whole.
    fn client(policy: &SourceRetryPolicy, is_plain: bool) -> ClientOptions {
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have been quicker, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        ClientOptions::new()
            .with_allow_http(is_plain)
            .with_connect_timeout(policy.connect_time)
            .with_timeout_disabled()
            .with_read_timeout(policy.answer_time)
    }
}
