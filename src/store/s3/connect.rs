//! How the S3 client comes to its endpoint, region, credentials and TLS. Owns the order in which they are
//! looked for. Sends no S3 request; without a region or keys the machine's metadata service may be asked.

use std::time::Duration;

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds::region::ImdsRegionProvider;
use aws_config::meta::region::{ProvideRegion, RegionProviderChain};
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{Builder, RequestChecksumCalculation, ResponseChecksumValidation};
use aws_sdk_s3::config::{Region, SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_http_client::{Builder as HttpBuilder, Connector};
use aws_types::service_config::ServiceConfigKey;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::error::{Error, Result};
use crate::store::{Addressing, StoreOptions};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For one attempt, until the answer begins; a large body to send gets more.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// A transfer that moves nothing for so long is broken.
const STALL: Duration = Duration::from_secs(20);
const ATTEMPTS: u32 = 3;
/// How long a request of a process that is gone may take to have its effect: all attempts, and the SDK's pauses between
/// them, 1 and 2 s at most. A large body adds nothing: what was not sent to its end never becomes an object.
pub(super) const LONGEST_REQUEST: Duration = Duration::from_secs(ATTEMPT_TIMEOUT.as_secs() * ATTEMPTS as u64 + 3);

pub(super) struct Connection {
    pub client: aws_sdk_s3::Client,
    /// For messages: where the requests go.
    pub endpoint: String,
    pub region: String,
    /// Asked for a message only: whose keys were refused.
    pub credentials: Option<SharedCredentialsProvider>,
}

/// The region that options, environment or profile tell.
async fn told_region(options: &StoreOptions) -> Option<Region> {
    match &options.region {
        Some(region) => Some(Region::new(region.clone())),
        // The metadata service is left out here: away from AWS it only costs time.
        None => {
            let chain = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new());
            chain.or_else(ProfileFileRegionProvider::new()).region().await
        }
    }
}

/// What [`connect`] refuses without asking a server.
pub(in crate::store) async fn check(options: &StoreOptions) -> Result<()> {
    let http = http_client()?;
    let config = load(options, &http, told_region(options).await).await;
    custom_endpoint(&config, options).map(drop)
}

pub(super) async fn connect(options: &StoreOptions) -> Result<Connection> {
    let http = http_client()?;
    let told = told_region(options).await;
    let mut config = load(options, &http, told.clone()).await;
    let endpoint = custom_endpoint(&config, options)?;
    if told.is_none() {
        let region = match &endpoint {
            Some(_) => Some(Region::new("us-east-1")),
            None => ImdsRegionProvider::builder().build().region().await,
        };
        let region = region.ok_or_else(|| Error::config("S3: no region is set: set AWS_REGION, or AWS_PROFILE"))?;
        // Again, since credentials from web identity and SSO need the region too.
        config = load(options, &http, Some(region)).await;
    }
    let region = config.region().map(|region| region.as_ref().to_owned()).unwrap_or_default();

    let path_style = match options.addressing {
        Addressing::Auto => endpoint.as_deref().is_some_and(|url| !is_aws(url)),
        Addressing::Path => true,
        Addressing::Virtual => false,
    };
    // Checksums by hand (see `create`): what the SDK would add by itself, many stores refuse.
    let s3 = Builder::from(&config)
        .force_path_style(path_style)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .stalled_stream_protection(StalledStreamProtectionConfig::enabled().grace_period(STALL).build())
        .build();
    Ok(Connection {
        client: aws_sdk_s3::Client::from_conf(s3),
        endpoint: endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com")),
        region,
        credentials: config.credentials_provider(),
    })
}

async fn load(options: &StoreOptions, http: &SharedHttpClient, region: Option<Region>) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(http.clone())
        .region(Known(region))
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .timeout_config(timeouts(ATTEMPT_TIMEOUT));
    if let Some(url) = &options.endpoint_url {
        loader = loader.endpoint_url(url);
    }
    loader.load().await
}

pub(super) fn timeouts(attempt: Duration) -> TimeoutConfig {
    TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).operation_attempt_timeout(attempt).build()
}

/// `None` too, which keeps the SDK from looking further.
#[derive(Debug)]
struct Known(Option<Region>);

impl ProvideRegion for Known {
    fn region(&self) -> aws_config::meta::region::future::ProvideRegion<'_> {
        aws_config::meta::region::future::ProvideRegion::ready(self.0.clone())
    }
}

/// The endpoint if it is not AWS's own for the region: the option, `AWS_ENDPOINT_URL_S3`, the profile's
/// `services` section, `AWS_ENDPOINT_URL`, the profile. The SDK's order; it does not tell the outcome.
fn custom_endpoint(config: &SdkConfig, options: &StoreOptions) -> Result<Option<String>> {
    let for_s3 = || {
        let key = ServiceConfigKey::builder().service_id("S3").env("AWS_ENDPOINT_URL").profile("endpoint_url");
        config.service_config()?.load_config(key.build().ok()?)
    };
    let (url, from) = match &options.endpoint_url {
        Some(url) => (Some(url.clone()), "--endpoint-url"),
        None => {
            (for_s3().or_else(|| config.endpoint_url().map(str::to_owned)), "the endpoint URL in the AWS configuration")
        }
    };
    let Some(url) = url else { return Ok(None) };
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
    match host {
        // A password may have a slash in it.
        Some(host) if !host.is_empty() && !host.contains(' ') && !url.contains('@') => {
            Ok(Some(url.trim_end_matches('/').to_owned()))
        }
        // Not repeated where it may carry a password.
        Some(_) => Err(Error::config(format!("{from} must be http://HOST:PORT or https://HOST:PORT, without a user"))),
        None => {
            let shown = crate::store::url::redacted(&url);
            Err(Error::config(format!("{from} {shown:?} must begin with http:// or https://")))
        }
    }
}

fn is_aws(url: &str) -> bool {
    let host = url.split("//").nth(1).unwrap_or(url).split(['/', ':']).next().unwrap_or_default();
    host == "amazonaws.com" || host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
}

/// rustls with ring and the system's certificates, `AWS_CA_BUNDLE` added; `HTTPS_PROXY`, `HTTP_PROXY` and
/// `NO_PROXY` are followed. The SDK does neither by itself.
fn http_client() -> Result<SharedHttpClient> {
    let mut trust = TrustStore::default();
    if let Some(path) = std::env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty()) {
        let shown = path.to_string_lossy();
        let pem = std::fs::read(&path).map_err(|error| Error::config(format!("AWS_CA_BUNDLE {shown}: {error}")))?;
        if !is_pem(&pem) {
            return Err(Error::config(format!("AWS_CA_BUNDLE {shown} holds no certificates in PEM format")));
        }
        trust = trust.with_pem_certificate(pem);
    }
    let tls = TlsContext::builder().with_trust_store(trust).build();
    let tls = tls.map_err(|error| Error::config(format!("TLS cannot be set up: {error}")))?;
    // The plain `build_https` has no way to follow a proxy.
    Ok(HttpBuilder::new().build_with_connector_fn(move |settings, components| {
        let mut connector = Connector::builder();
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
        connector
            .proxy_config(ProxyConfig::from_env())
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .tls_context(tls.clone())
            .build()
    }))
}

/// The HTTP client panics on a certificate that is none, so look first.
fn is_pem(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut blocks = text.split("-----BEGIN CERTIFICATE-----").skip(1).peekable();
    blocks.peek().is_some()
        && blocks.all(|block| {
            let body = block.split("-----END CERTIFICATE-----").next().unwrap_or_default();
            let body: String = body.split_whitespace().collect();
            // A DER sequence of two length bytes, as every certificate is.
            BASE64.decode(body).is_ok_and(|der| der.len() > 4 && der[..2] == [0x30, 0x82])
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_style_is_for_hosts_that_are_not_aws() {
        for url in ["https://s3.eu-west-1.amazonaws.com", "https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com:443/"]
        {
            assert!(is_aws(url), "{url}");
        }
        for url in ["http://127.0.0.1:9000", "https://amazonaws.com.example.org", "https://notamazonaws.com"] {
            assert!(!is_aws(url), "{url}");
        }
    }

    #[test]
    fn a_bundle_without_certificates_is_told_apart() {
        assert!(!is_pem(b""));
        assert!(!is_pem(b"-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----"));
        let der = BASE64.encode([0x30, 0x82, 0, 1, 0]);
        assert!(is_pem(format!("# CA\n-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n").as_bytes()));
    }

    #[tokio::test]
    async fn an_endpoint_without_a_scheme_is_refused() {
        for (url, hint) in [
            ("localhost:9000", "must begin with http"),
            ("http://", "HOST"),
            ("http://u:pw@host", "HOST"),
            ("http://u:p/pw@host", "HOST"),
            ("u:pw@host:9000", "must begin with http"),
        ] {
            let options = StoreOptions { endpoint_url: Some(url.into()), ..Default::default() };
            let error = connect(&options).await.err().unwrap();
            assert_eq!(error.kind(), crate::error::Kind::Config);
            assert!(error.message().contains(hint), "{error}");
            assert!(!error.message().contains("pw"), "{error}");
        }
    }
}
