//! Certificates for the tests of TLS: one authority, and the certificates that it signs.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};

/// An authority, its certificate in a file.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// The file with the authority's own certificate, PEM.
    pub ca: PathBuf,
}

/// A certificate and its key, PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The file with the certificate.
    pub certificate: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one, named `name`; its files are in `folder`.
    pub fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let ca = folder.join(format!("{name}.pem"));
        std::fs::write(&ca, certificate.pem()).unwrap();
        Authority { folder: folder.to_owned(), issuer: Issuer::new(params, key), ca }
    }

    /// A certificate for `name`, good for the addresses `hosts`.
    pub fn sign(&self, name: &str, hosts: &[&str]) -> Identity {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str| self.folder.join(format!("{name}.{kind}"));
        let identity = Identity { certificate: file("pem"), key: file("key") };
        std::fs::write(&identity.certificate, certificate.pem()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }
}
