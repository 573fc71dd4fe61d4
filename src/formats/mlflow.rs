//! A tracking server of MLflow, through its REST API 2.0.

mod run;

pub use run::Run;

use base64::{Engine, prelude::BASE64_STANDARD};
use compress_compiler::{
    error::{Error, Result},
    words::option,
};
use rustls::crypto::ring;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use ureq::{
    Agent, Body,
    http::{Response, Uri, header::AUTHORIZATION},
    tls::{RootCerts, TlsConfig},
};

/// The longest that a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer, in bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// How many parameters and metrics a request may have.
const PARAMETERS: usize = 100;
const METRICS: usize = 1000;

/// An experiment of a tracking server, to which runs are logged.
pub struct Mlflow {
    server: String,
    agent: Agent,
    /// The header by which the server knows the user, where it asks.
    authorization: Option<String>,
    experiment: String,
}

impl Mlflow {
    /// Finds the experiment at the server of this URL, or makes it. These variables of the environment count, as for MLflow's own
    /// client: `MLFLOW_EXPERIMENT_NAME` (`compress` if it is not set), `MLFLOW_TRACKING_USERNAME` with
    /// `MLFLOW_TRACKING_PASSWORD`, or `MLFLOW_TRACKING_TOKEN`.
    ///
    /// # Errors
    /// Usage for a URL that no server can have; file when the server can't be reached, refuses, or is not MLflow.
    pub fn open(url: &str) -> Result<Self> {
        check(url)?;
        // The system says whom to trust: a company's own servers too.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
        let tls = tls.unversioned_rustls_crypto_provider(Arc::new(ring::default_provider())).build();
        let agent = Agent::config_builder().tls_config(tls).timeout_global(Some(PATIENCE)).http_status_as_error(false);
        let mut server = Self {
            server: url.trim_end_matches('/').into(),
            agent: agent.build().into(),
            authorization: authorization(),
            experiment: String::new(),
        };
        let name = variable("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|| "compress".into());
        server.experiment = match server.found(&name)? {
            Some(id) => id,
            None => text(&server.post("experiments/create", &json!({ "name": name }))?, "/experiment_id")
                .ok_or_else(|| server.strange())?,
        };
        Ok(server)
    }

    /// Logs a run, which is finished, or failed unless `passed`.
    ///
    /// # Errors
    /// File when the server can't be reached, or refuses.
    pub fn log(&self, run: &Run, passed: bool) -> Result<()> {
        let begun = json!({ "experiment_id": self.experiment, "run_name": run.name, "start_time": run::now() });
        let id = text(&self.post("runs/create", &begun)?, "/run/info/run_id").ok_or_else(|| self.strange())?;
        let logged = self.batches(run, &id);
        let status = if passed && logged.is_ok() { "FINISHED" } else { "FAILED" };
        let ended = self.post("runs/update", &json!({ "run_id": id, "status": status, "end_time": run::now() }));
        // What failed first says more.
        logged.and(ended.map(drop))
    }

    fn batches(&self, run: &Run, id: &str) -> Result<()> {
        let batch =
            |kind: &str, all: &[Value]| self.post("runs/log-batch", &json!({ "run_id": id, kind: all })).map(drop);
        run.params.chunks(PARAMETERS).try_for_each(|some| batch("params", some))?;
        run.metrics.chunks(METRICS).try_for_each(|some| batch("metrics", some))?;
        batch("tags", &run.tags)
    }

    /// The experiment of this name, if there is one.
    fn found(&self, name: &str) -> Result<Option<String>> {
        let request = self.agent.get(self.at("experiments/get-by-name")).query("experiment_name", name);
        let request = self.authorization.iter().fold(request, |r, value| r.header(AUTHORIZATION, value));
        let (status, answer) = self.answer(request.call())?;
        match text(&answer, "/experiment/experiment_id") {
            Some(_) if text(&answer, "/experiment/lifecycle_stage").is_some_and(|stage| stage == "deleted") => {
                let help = "restore it, or name another in MLFLOW_EXPERIMENT_NAME";
                Err(self.error(format!("the experiment `{name}` is deleted")).help(help))
            }
            Some(id) => Ok(Some(id)),
            None if text(&answer, "/error_code").is_some_and(|code| code == "RESOURCE_DOES_NOT_EXIST") => Ok(None),
            None => Err(self.refusal(status, &answer)),
        }
    }

    fn post(&self, method: &str, body: &Value) -> Result<Value> {
        let request = self.agent.post(self.at(method)).content_type("application/json");
        let request = self.authorization.iter().fold(request, |r, value| r.header(AUTHORIZATION, value));
        let (status, answer) = self.answer(request.send(body.to_string()))?;
        if status == 200 { Ok(answer) } else { Err(self.refusal(status, &answer)) }
    }

    fn at(&self, method: &str) -> String {
        format!("{}/api/2.0/mlflow/{method}", self.server)
    }

    /// The status of an answer, and the answer; null where it is not JSON.
    fn answer(&self, sent: Result<Response<Body>, ureq::Error>) -> Result<(u16, Value)> {
        let read = sent.and_then(|mut response| {
            let text = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string()?;
            Ok((response.status().as_u16(), serde_json::from_str(&text).unwrap_or_default()))
        });
        read.map_err(|e| self.error(format!("the MLflow server can't be reached: {e}")).help(give_another()))
    }

    fn refusal(&self, status: u16, answer: &Value) -> Error {
        match (status, text(answer, "/message")) {
            (401 | 403, _) => self.error(format!("the MLflow server refuses the user (status {status})")).help(
                "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment",
            ),
            (_, Some(message)) => {
                self.error(format!("the MLflow server refuses: {message}")).help("the log of the server may say more")
            }
            (status, None) => self.error(format!("this is not an MLflow server: it answers with status {status}")).help(give_another()),
        }
    }

    fn strange(&self) -> Error {
        self.error("this is not an MLflow server: its answer lacks an id".into()).help(give_another())
    }

    fn error(&self, what: String) -> Error {
        Error::file(what).in_file(&self.server)
    }
}

fn give_another() -> String {
    format!("start the server, or give its URL with {}", option::MLFLOW)
}

/// # Errors
/// Usage for a URL that no server can have, and for one with a password, which messages would show.
fn check(url: &str) -> Result<()> {
    let help = format!("{} takes the URL of a tracking server, such as http://127.0.0.1:5000", option::MLFLOW);
    let uri = url.parse::<Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    match uri.as_ref().and_then(Uri::authority) {
        None => Err(Error::usage(format!("`{url}` is not the URL of an HTTP server")).help(help)),
        Some(authority) if authority.as_str().contains('@') => Err(Error::usage("the URL has a user name in it")
            .help("set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment instead")),
        Some(_) => Ok(()),
    }
}

/// A variable of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn authorization() -> Option<String> {
    match (variable("MLFLOW_TRACKING_USERNAME"), variable("MLFLOW_TRACKING_PASSWORD")) {
        (Some(user), Some(password)) => Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))),
        _ => variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}")),
    }
}

/// The text at a place in an answer.
fn text(answer: &Value, place: &str) -> Option<String> {
    answer.pointer(place)?.as_str().map(String::from)
}
