//! The actions: bodies and answers are JSON.
//!
//! | action | body | answer |
//! |---|---|---|
//! | `start` | `schema` and `by`, or `kind`; `combine`, `partitions`, `bytes`, `owner`, `weight`, `ttl_s`, `sealed_ttl_s` | `shuffle`, `handle` |
//! | `seal` | `shuffle`, `inputs`: how many, or which | `records`, `bytes` |
//! | `bounds` | `shuffle`, `n` | `keys`; then the same as rows, a stream of Arrow IPC |
//! | `status` | `shuffle` | as `GET /v1/shuffles/<number>` |
//! | `keep-alive`, `delete` | `shuffle` | `alive`, `deleted` |

use crate::limits::{ACTION_BYTES, INPUTS};
use crate::rows::{Rows, check_message};
use crate::service::ShuffleFlights;
use crate::status;
use crate::ticket::{key_text, shuffle};
use arrow_flight::{Action, ActionType};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_schema::Schema;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use partage_service::shuffle::{ColumnCombine, Combine, CombinedColumn, Durability, RecordKind, SortColumn};
use partage_shuffle::network::LocalSeal;
use partage_shuffle_client::{Shuffle, StartOptions};
use partage_shuffle_wire::client::RefusalWord;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tonic::Status;

/// All actions, and what each does.
const ACTIONS: [(&str, &str); 6] = [
    (
        "start",
        r#"start a shuffle: {"schema": base64 of the schema as IPC message, "by": [{"column", "descending", "nulls_first"}]}, or {"kind": "raw"}; "combine": {column: "count" | "sum" | "min" | "max"} of all other columns, or "sum-i64" and the like of raw records; "partitions", "bytes", "owner", "weight", "ttl_s", "sealed_ttl_s", "durability": "disk" | "memory" if wanted. Answers {"shuffle", "handle"}"#,
    ),
    (
        "seal",
        r#"seal a shuffle: {"shuffle", "inputs": how many input partitions, or a list of them}. Answers {"records", "bytes"}"#,
    ),
    (
        "bounds",
        r#"the keys that bound n partitions: {"shuffle", "n"}. Answers {"keys": [base64]}, and as second result these keys as rows, a stream of Arrow IPC"#,
    ),
    ("status", r#"how far a shuffle is, and what it waits for: {"shuffle"}"#),
    ("keep-alive", r#"a shuffle is in use, and lives on: {"shuffle"}"#),
    ("delete", r#"delete a shuffle with all its records: {"shuffle"}"#),
];

/// The actions, as clients list them.
pub(crate) fn list() -> Vec<ActionType> {
    let action =
        |(name, what): (&str, &str)| ActionType { r#type: name.to_owned(), description: what.to_owned() };
    ACTIONS.into_iter().map(action).collect()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartForm {
    schema: Option<String>,
    #[serde(default)]
    by: Vec<ByForm>,
    kind: Option<KindForm>,
    combine: Option<CombineForm>,
    durability: Option<String>,
    partitions: Option<u64>,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    owner: String,
    weight: Option<u16>,
    ttl_s: Option<u64>,
    sealed_ttl_s: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindForm {
    Raw,
    Arrow,
}

/// How equal keys become one: of raw records in one way, of rows by their columns.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum CombineForm {
    Raw(String),
    Columns(BTreeMap<String, ColumnCombineForm>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ColumnCombineForm {
    Count,
    Sum,
    Min,
    Max,
}

impl ColumnCombineForm {
    fn by(self) -> ColumnCombine {
        match self {
            ColumnCombineForm::Count => ColumnCombine::Count,
            ColumnCombineForm::Sum => ColumnCombine::Sum,
            ColumnCombineForm::Min => ColumnCombine::Min,
            ColumnCombineForm::Max => ColumnCombine::Max,
        }
    }
}

/// A column by which rows are ordered: its name, or more.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ByForm {
    Name(String),
    Column(ColumnForm),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnForm {
    column: String,
    #[serde(default)]
    descending: bool,
    #[serde(default)]
    nulls_first: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneForm {
    shuffle: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealForm {
    shuffle: String,
    inputs: InputsForm,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum InputsForm {
    Count(u32),
    Named(BTreeSet<u32>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoundsForm {
    shuffle: String,
    n: u64,
}

fn form<T: DeserializeOwned>(action: &Action) -> Result<T, Status> {
    if action.body.len() > ACTION_BYTES {
        let why = format!("the body of an action has {ACTION_BYTES} bytes at most");
        return Err(status::malformed(why));
    }
    let why =
        |why| status::malformed(format!("the body of `{}` is not what it should be: {why}", action.r#type));
    serde_json::from_slice(&action.body).map_err(why)
}

fn place(schema: &Schema, by: ByForm) -> Result<SortColumn, Status> {
    let ColumnForm { column: name, descending, nulls_first } = match by {
        ByForm::Name(column) => ColumnForm { column, descending: false, nulls_first: false },
        ByForm::Column(column) => column,
    };
    let column = place_of(schema, &name, "to order by")?;
    Ok(SortColumn { column, descends: descending, nulls_first })
}

fn place_of(schema: &Schema, name: &str, what_for: &str) -> Result<u32, Status> {
    let mut places = (0_u32..).zip(schema.fields()).filter(|(_, field)| field.name().as_str() == name);
    match (places.next(), places.next()) {
        (Some((column, _)), None) => Ok(column),
        (Some(_), Some(_)) => {
            Err(status::malformed(format!("the schema has two columns {name:?}: rename one")))
        }
        (None, _) => Err(status::malformed(format!("the schema has no column {name:?} {what_for}"))),
    }
}

impl StartForm {
    fn kind(
        schema: Option<String>,
        by: Vec<ByForm>,
        kind: Option<KindForm>,
        combine: &BTreeMap<String, ColumnCombineForm>,
    ) -> Result<RecordKind, Status> {
        match (kind, schema) {
            (Some(KindForm::Raw), None) if by.is_empty() && combine.is_empty() => Ok(RecordKind::Raw),
            (Some(KindForm::Raw), _) => {
                let why = "raw records are ordered by their keys, and have no columns: leave out `schema`, `by` and columns to combine";
                Err(status::malformed(why))
            }
            (_, None) => {
                Err(status::malformed("say what the records are: give `schema` and `by`, or `kind` \"raw\""))
            }
            (_, Some(text)) => {
                let why = |why: &dyn std::fmt::Display| {
                    status::malformed(format!(
                        "`schema` is no schema: {why}: give base64 of schema.serialize()"
                    ))
                };
                let bytes = STANDARD.decode(text).map_err(|error| why(&error))?;
                check_message(&bytes).map_err(status::differs)?;
                let schema = try_schema_from_ipc_buffer(&bytes).map_err(|error| why(&error))?;
                let order = by.into_iter().map(|by| place(&schema, by)).collect::<Result<Vec<_>, _>>()?;
                let combined = combine.iter().map(|(name, by)| {
                    place_of(&schema, name, "to combine").map(|column| CombinedColumn { column, by: by.by() })
                });
                let combined = combined.collect::<Result<Vec<_>, _>>()?;
                let rows = Rows::combining(&schema, &order, &combined).map_err(status::differs)?;
                Ok(RecordKind::Arrow(rows.kind()))
            }
        }
    }

    fn options(self) -> Result<StartOptions, Status> {
        let StartForm { schema, by, kind, combine, partitions, bytes, .. } = self;
        let StartForm { owner, weight, ttl_s, sealed_ttl_s, durability, .. } = self;
        let durability = durability.as_deref().map_or(Ok(Durability::Disk), str::parse::<Durability>);
        let (raw, columns) = match combine {
            None => (None, BTreeMap::new()),
            Some(CombineForm::Raw(text)) => {
                (Some(text.parse::<Combine>().map_err(status::malformed)?), BTreeMap::new())
            }
            Some(CombineForm::Columns(columns)) => (None, columns),
        };
        Ok(StartOptions {
            partitions: partitions.unwrap_or(1),
            bytes,
            kind: StartForm::kind(schema, by, kind, &columns)?,
            combine: raw,
            durability: durability.map_err(status::malformed)?,
            ttl: ttl_s.map(Duration::from_secs),
            sealed_ttl: sealed_ttl_s.map(Duration::from_secs),
            owner,
            weight: weight.unwrap_or(1),
            ..StartOptions::default()
        })
    }
}

fn inputs(form: InputsForm) -> Result<BTreeSet<u32>, Status> {
    let count = match &form {
        InputsForm::Count(count) => *count,
        InputsForm::Named(named) => u32::try_from(named.len()).unwrap_or(u32::MAX),
    };
    if count > INPUTS {
        return Err(status::malformed(format!("a seal names {INPUTS} input partitions at most")));
    }
    Ok(match form {
        InputsForm::Count(count) => (0..count).collect(),
        InputsForm::Named(named) => named,
    })
}

fn json_body(value: &Value) -> Bytes {
    value.to_string().into()
}

impl ShuffleFlights {
    /// Does an action, and says what its results are.
    pub(crate) async fn act(&self, action: &Action) -> Result<Vec<Bytes>, Status> {
        match action.r#type.as_str() {
            "start" => self.start(form(action)?).await,
            "seal" => self.seal(form(action)?).await,
            "bounds" => self.bounds(form(action)?).await,
            "status" => {
                let OneForm { shuffle: id } = form(action)?;
                let told = self.pool().status(shuffle(&id)?).await.map_err(status::refused)?;
                Ok(vec![serde_json::to_vec(&told).map_err(|why| Status::internal(why.to_string()))?.into()])
            }
            "keep-alive" => {
                let OneForm { shuffle: id } = form(action)?;
                self.node().await?.keep_alive(shuffle(&id)?).await.map_err(status::refused)?;
                Ok(vec![json_body(&json!({ "alive": true }))])
            }
            "delete" => {
                let OneForm { shuffle: id } = form(action)?;
                match self.node().await?.delete(shuffle(&id)?).await {
                    // The answer to an earlier try may have been lost.
                    Err(refusal) if refusal.word != RefusalWord::ShuffleDeleted => {
                        Err(status::refused(refusal))
                    }
                    _ => Ok(vec![json_body(&json!({ "deleted": true }))]),
                }
            }
            other => {
                let names = ACTIONS.map(|(name, _)| name).join(", ");
                let shown: String = other.chars().take(100).collect();
                Err(status::malformed(format!("there is no action {shown:?}: there are {names}")))
            }
        }
    }

    async fn start(&self, form: StartForm) -> Result<Vec<Bytes>, Status> {
        let options = form.options()?;
        // Before the node runs it knows of no other one.
        let node = self.node().await?;
        let terms = options.terms(self.pool().addresses().len());
        let started = node.start(terms, options.of_shuffle()).await;
        let (id, terms) = started.map_err(status::refused)?;
        let handle = Shuffle { id, terms }.to_string();
        Ok(vec![json_body(&json!({ "shuffle": id.to_string(), "handle": handle }))])
    }

    async fn seal(&self, form: SealForm) -> Result<Vec<Bytes>, Status> {
        let id = shuffle(&form.shuffle)?;
        match self.node().await?.seal(id, inputs(form.inputs)?).await.map_err(status::refused)? {
            LocalSeal::Sealed(records, bytes) => {
                Ok(vec![json_body(&json!({ "records": records, "bytes": bytes }))])
            }
            LocalSeal::Lacks(lacking) => Err(status::lacking(&lacking)),
        }
    }

    async fn bounds(&self, form: BoundsForm) -> Result<Vec<Bytes>, Status> {
        let (id, node) = (shuffle(&form.shuffle)?, self.node().await?);
        let kind = self.kind(&node, id).await?;
        let keys = node.bounds(id, form.n).await.map_err(status::refused)?;
        let texts: Vec<String> = keys.iter().map(|key| key_text(key)).collect();
        Ok(vec![json_body(&json!({ "keys": texts })), kind.keys_as_rows(&keys)?.into()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::limits::SHUFFLE_SCHEMA_BYTES;
    use tonic::Code;

    fn started(body: &str) -> Result<StartOptions, Status> {
        form::<StartForm>(&Action::new("start", body.to_owned()))?.options()
    }

    #[test]
    fn raw_records_are_started_without_a_schema() {
        let options = started(r#"{"kind":"raw","partitions":16,"owner":"etl","ttl_s":60}"#).unwrap();
        assert_eq!((options.kind, options.partitions), (RecordKind::Raw, 16));
        assert_eq!((options.owner.as_str(), options.ttl), ("etl", Some(Duration::from_secs(60))));
        assert_eq!(options.durability, Durability::Disk);
        let in_memory = started(r#"{"kind":"raw","durability":"memory"}"#).unwrap();
        assert_eq!(in_memory.durability, Durability::Memory);
    }

    #[test]
    fn a_start_that_makes_no_sense_is_refused() {
        let bad = [
            "",
            "{}",
            r#"{"kind":"rows"}"#,
            r#"{"kind":"raw","by":["a"]}"#,
            r#"{"kind":"arrow","by":["a"]}"#,
            r#"{"schema":"?","by":["a"]}"#,
            r#"{"schema":"AAAA","by":["a"]}"#,
            r#"{"kind":"raw","unknown":1}"#,
            r#"{"kind":"raw","combine":"sum"}"#,
            r#"{"kind":"raw","durability":"ram"}"#,
            r#"{"kind":"raw","combine":{"value":"sum"}}"#,
        ];
        for body in bad {
            let why = started(body).unwrap_err();
            assert_eq!(why.code(), Code::InvalidArgument, "{body}: {why}");
        }
        let long = STANDARD.encode(vec![0; SHUFFLE_SCHEMA_BYTES + 1]);
        let why = started(&format!(r#"{{"schema":"{long}","by":["a"]}}"#)).unwrap_err();
        assert!(why.message().contains("the schema has 131073 bytes"), "{why}");
    }

    #[test]
    fn rows_are_combined_by_their_columns_and_raw_records_in_one_way() {
        use arrow_array::{Int64Array, RecordBatch};
        use arrow_ipc::writer::StreamWriter;
        use std::sync::Arc;
        let raw = started(r#"{"kind":"raw","combine":"max-f64"}"#).unwrap();
        assert_eq!(raw.combine, Some(Combine::MaxF64));
        let column = || Arc::new(Int64Array::from(vec![1])) as arrow_array::ArrayRef;
        let batch = RecordBatch::try_from_iter([("a", column()), ("b", column()), ("c", column())]).unwrap();
        // The front of a stream is its schema.
        let stream = StreamWriter::try_new(Vec::new(), batch.schema_ref()).unwrap().into_inner().unwrap();
        let schema = STANDARD.encode(&stream[..stream.len() - 8]);
        let body = |combine: &str| format!(r#"{{"schema":"{schema}","by":["b"],"combine":{combine}}}"#);
        let RecordKind::Arrow(kind) = started(&body(r#"{"c":"count","a":"sum"}"#)).unwrap().kind else {
            panic!("rows");
        };
        let expected = [(0, ColumnCombine::Sum), (2, ColumnCombine::Count)];
        assert_eq!(kind.combine, expected.map(|(column, by)| CombinedColumn { column, by }));
        for (bad, part) in [
            (r#"{"a":"sum"}"#, "\"c\""),
            (r#"{"a":"sum","b":"sum","c":"sum"}"#, "\"b\""),
            (r#"{"a":"sum","d":"sum"}"#, "no column \"d\" to combine"),
        ] {
            let why = started(&body(bad)).unwrap_err();
            assert!(why.message().contains(part), "{why}");
        }
        let both = started(&body(r#""count""#)).unwrap();
        assert!(both.check().unwrap_err().to_string().contains("name a way for each column"));
    }

    #[test]
    fn columns_are_found_by_their_names() {
        use arrow_schema::{DataType, Field};
        let fields = ["a", "b", "b"].map(|name| Field::new(name, DataType::Int64, false));
        let schema = Schema::new(fields.to_vec());
        let by = |text: &str| place(&schema, serde_json::from_str(text).unwrap());
        let first = SortColumn { column: 0, descends: true, nulls_first: false };
        assert_eq!(by(r#"{"column":"a","descending":true}"#).unwrap(), first);
        assert_eq!(by(r#""a""#).unwrap(), SortColumn { descends: false, ..first });
        assert!(by(r#""b""#).unwrap_err().message().contains("two columns"));
        assert!(by(r#""c""#).unwrap_err().message().contains("no column"));
    }

    #[test]
    fn inputs_are_a_number_or_a_list() {
        let of = |text: &str| inputs(serde_json::from_str(text).unwrap());
        assert_eq!(of("3").unwrap(), BTreeSet::from([0, 1, 2]));
        assert_eq!(of("[7,7,1]").unwrap(), BTreeSet::from([1, 7]));
        assert!(of(&(INPUTS + 1).to_string()).is_err());
        assert!(serde_json::from_str::<InputsForm>("-1").is_err());
    }
}
