//! Columns of a schema by name: those at its top, and fields of structs by their path, as in `user.id`.
//!
//! A list and a map have no such fields: one row has several of them. A column at the top whose own name is `user.id` goes before
//! a field.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::errors::ParquetError;
use parquet::record::{Field, Row};
use parquet::schema::types::{Type, TypePtr};

/// Where a column is: the number of a field of the schema, then of a field of that, and so on.
type Path = Vec<usize>;

/// What every row has at a path that ends in a struct which is null.
static NULL: Field = Field::Null;

/// The columns of a schema.
pub struct SchemaColumns {
    /// The names at the top first, in the order of the file.
    pub names: Vec<String>,
    paths: Vec<Path>,
    /// How many of them are at the top.
    pub top: usize,
}

impl SchemaColumns {
    /// All columns of the schema that a dataset can name.
    pub fn of(schema: &Type) -> SchemaColumns {
        let fields = schema.get_fields();
        let mut columns = SchemaColumns { names: Vec::new(), paths: Vec::new(), top: fields.len() };
        for (number, field) in fields.iter().enumerate() {
            columns.add(field.name().to_owned(), vec![number]);
        }
        for (number, field) in fields.iter().enumerate() {
            columns.add_fields_of(field, field.name(), &[number]);
        }
        columns
    }

    fn add(&mut self, name: String, path: Path) {
        self.names.push(name);
        self.paths.push(path);
    }

    /// Goes as deep as the schema, which the library has gone down before.
    fn add_fields_of(&mut self, group: &Type, name: &str, path: &[usize]) {
        if !is_struct(group) {
            return;
        }
        for (number, field) in group.get_fields().iter().enumerate() {
            let (name, path) = (format!("{name}.{}", field.name()), [path, &[number]].concat());
            self.add(name.clone(), path.clone());
            self.add_fields_of(field, &name, &path);
        }
    }

    /// What a row has in a column.
    pub fn field<'a>(&self, row: &'a Row, column: usize) -> Option<&'a Field> {
        let (first, below) = self.paths[column].split_first()?;
        let mut field = nth(row, *first)?;
        for number in below {
            match field {
                Field::Group(row) => field = nth(row, *number)?,
                Field::Null => return Some(&NULL),
                _ => return None,
            }
        }
        Some(field)
    }

    /// The schema with these columns alone, in the order of the file.
    pub fn projection(&self, schema: &Type, wanted: impl Fn(usize) -> bool) -> Result<Type, ParquetError> {
        let wanted: Vec<&[usize]> = (0..self.paths.len())
            .filter(|column| wanted(*column))
            .map(|c| self.paths[c].as_slice())
            .collect();
        let fields = pruned(schema.get_fields(), &wanted)?;
        Type::group_type_builder(schema.name()).with_fields(fields).build()
    }
}

fn nth(row: &Row, number: usize) -> Option<&Field> {
    row.get_column_iter().nth(number).map(|(_, field)| field)
}

/// Whether each row has one of its fields, or none.
fn is_struct(field: &Type) -> bool {
    let info = field.get_basic_info();
    let is_repeated = info.has_repetition() && info.repetition() == Repetition::REPEATED;
    let is_plain = matches!(info.converted_type(), ConvertedType::NONE);
    let is_annotated = matches!(info.logical_type_ref(), Some(LogicalType::List | LogicalType::Map));
    field.is_group() && !is_repeated && is_plain && !is_annotated
}

/// The fields that a path leads to, each with all below it.
fn pruned(fields: &[TypePtr], paths: &[&[usize]]) -> Result<Vec<TypePtr>, ParquetError> {
    let mut kept = Vec::new();
    for (number, field) in fields.iter().enumerate() {
        let below: Vec<&[usize]> =
            paths.iter().filter(|path| path.first() == Some(&number)).map(|path| &path[1..]).collect();
        if below.is_empty() {
            continue;
        }
        if below.iter().any(|path| path.is_empty()) {
            kept.push(Arc::clone(field));
            continue;
        }
        let fields = pruned(field.get_fields(), &below)?;
        let group = Type::group_type_builder(field.name()).with_fields(fields);
        kept.push(Arc::new(group.with_repetition(field.get_basic_info().repetition()).build()?));
    }
    Ok(kept)
}
