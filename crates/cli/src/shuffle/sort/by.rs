//! By what is sorted: `COLUMN[:number][:desc][:nulls-first]`.

use partage_shuffle_client::key::Order;
use std::str::FromStr;

/// A column by which rows are sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct By {
    /// Its name.
    pub column: String,
    /// Whether texts of CSV are numbers.
    pub is_number: bool,
    /// Its direction, and where its nulls are.
    pub order: Order,
}

impl FromStr for By {
    type Err = String;

    /// The words stand at the end, so a column may have colons in its name: `a:b:desc` is column `a:b`.
    fn from_str(text: &str) -> Result<By, String> {
        let (mut column, mut is_number, mut order) = (text, false, Order::default());
        while let Some((rest, word)) = column.rsplit_once(':') {
            match word {
                "number" => is_number = true,
                "desc" => order.descends = true,
                "nulls-first" => order.nulls_first = true,
                "asc" | "text" | "nulls-last" => {}
                _ => break,
            }
            column = rest;
        }
        if column.is_empty() {
            return Err(format!(
                "{text:?} names no column: give COLUMN, COLUMN:desc or COLUMN:number:nulls-first"
            ));
        }
        Ok(By { column: column.to_owned(), is_number, order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_behind_a_column_say_how_it_is_sorted() {
        let by = |column: &str, is_number, descends, nulls_first| By {
            column: column.to_owned(),
            is_number,
            order: Order { descends, nulls_first },
        };
        for (text, expected) in [
            ("name", by("name", false, false, false)),
            ("size:number:desc", by("size", true, true, false)),
            ("at:nulls-first:asc", by("at", false, false, true)),
            ("a:b:desc", by("a:b", false, true, false)),
            ("a:other", by("a:other", false, false, false)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in ["", ":desc"] {
            assert!(bad.parse::<By>().unwrap_err().contains("names no column"), "{bad:?}");
        }
    }
}
