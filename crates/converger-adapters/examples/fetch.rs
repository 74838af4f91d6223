//! The minimum that any client must do to read a lab: fetch the three responses of an observation over HTTPS and parse them into types.
//!
//! `fetch DIR` does that and prints the number of bytes. `fetch DIR desired` prints a declared state of all guests in their current state.
//! `fetch DIR lists COUNT` fetches the list of all guests COUNT times and prints the time of one. DIR is the directory that `converger lab
//! --into` wrote. `cargo xtask bench` compares `converger audit` and `converger lab` with it.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use serde_json::{Value, json};

type FetchResult<T> = Result<T, Box<dyn Error>>;

/// A row of the list, with the fields that an observation keeps.
#[derive(Deserialize)]
#[expect(dead_code, reason = "parsed and thrown away: that is what is measured")]
struct FetchedRow {
    vmid: u32,
    #[serde(rename = "type")]
    kind: String,
    node: String,
    name: Option<String>,
    status: String,
    lock: Option<String>,
    hastate: Option<String>,
    template: Option<u8>,
    tags: Option<String>,
    maxcpu: Option<f64>,
    maxmem: Option<u64>,
}

#[derive(Deserialize)]
struct FetchedAnswer<T> {
    data: T,
}

fn main() -> FetchResult<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("which directory?")?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let output = match arguments.next().as_deref() {
        Some("desired") => runtime.block_on(print_desired(&directory))?,
        Some("lists") => {
            let count = arguments.next().ok_or("how many?")?.parse()?;
            runtime.block_on(fetch_lists(&directory, count))?
        }
        _ => runtime.block_on(fetch_reading(&directory))?,
    };
    println!("{output}");
    Ok(())
}

async fn fetch_reading(directory: &Path) -> FetchResult<Value> {
    let lab = LabEndpoint::open(directory)?;
    let before: FetchedAnswer<Vec<Value>> = serde_json::from_slice(&lab.get("cluster/status").await?)?;
    let rows: FetchedAnswer<Vec<FetchedRow>> = serde_json::from_slice(&lab.get("cluster/resources?type=vm").await?)?;
    let after: FetchedAnswer<Vec<Value>> = serde_json::from_slice(&lab.get("cluster/status").await?)?;
    Ok(json!({ "guests": rows.data.len(), "nodes": before.data.len().max(after.data.len()) }))
}

async fn fetch_lists(directory: &Path, count: u32) -> FetchResult<Value> {
    let lab = LabEndpoint::open(directory)?;
    let mut bytes = 0;
    for _ in 0..count {
        bytes = lab.get("cluster/resources?type=vm").await?.len();
    }
    Ok(json!({ "bytes": bytes }))
}

async fn print_desired(directory: &Path) -> FetchResult<Value> {
    let lab = LabEndpoint::open(directory)?;
    let rows: FetchedAnswer<Vec<FetchedRow>> = serde_json::from_slice(&lab.get("cluster/resources?type=vm").await?)?;
    // A guest that is neither running nor stopped cannot be declared in its current state.
    let settled = rows.data.iter().filter(|row| matches!(row.status.as_str(), "running" | "stopped"));
    let guests: Vec<Value> =
        settled.map(|row| json!({ "vmid": row.vmid, "kind": row.kind, "name": row.name, "state": row.status })).collect();
    Ok(json!({ "version": 1, "environment": "lab", "guests": guests }))
}

struct LabEndpoint {
    client: reqwest::Client,
    url: String,
    token: String,
}

impl LabEndpoint {
    fn open(directory: &Path) -> FetchResult<Self> {
        let lab_file: Value = serde_json::from_slice(&fs::read(directory.join("lab.json"))?)?;
        let text = |pointer: &str| lab_file.pointer(pointer).and_then(Value::as_str).ok_or(format!("lab.json has no {pointer}"));
        let port = lab_file.pointer("/nodes/0/port").ok_or("lab.json has no port")?;
        let secret = fs::read_to_string(directory.join(text("/token/secret/file")?))?;
        let client =
            reqwest::Client::builder().tls_backend_preconfigured(tls_config(&directory.join("ca.pem"))?).http1_only().no_proxy().build()?;
        let token = format!("PVEAPIToken={}={}", text("/token/id")?, secret.trim_end());
        Ok(Self { client, url: format!("https://{}:{port}", text("/nodes/0/host")?), token })
    }

    async fn get(&self, path: &str) -> FetchResult<Vec<u8>> {
        let url = format!("{}/api2/extjs/{path}", self.url);
        let answer = self.client.get(url).header("Authorization", &self.token).send().await?.error_for_status()?;
        Ok(answer.bytes().await?.to_vec())
    }
}

fn tls_config(authority: &Path) -> FetchResult<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority)? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
