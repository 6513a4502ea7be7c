//! Our user's rights, its way in, and the durability of commits: for `partage check`.
//!
//! A user sees its own rights alone. Only the database's administrator sees who else may read the tables.

use std::collections::BTreeSet;

use crate::contract::{Remark, Weight};

use super::connection::RootConnection;
use super::fault::Attempt;

/// What our user can see.
#[derive(Debug, Default)]
pub(super) struct UserRights {
    database: String,
    /// As `SHOW GRANTS` prints them; a password's hash may be in them.
    grants: Vec<String>,
    /// As `SHOW CREATE USER` prints it, likewise.
    user: String,
    /// The server refuses connections without TLS.
    is_tls_required: bool,
    /// A commit is on its disk before it is acknowledged.
    is_durable: bool,
}

/// Reads our user's rights, and the settings that bear on them, in one message.
pub(super) async fn look(connection: &mut RootConnection) -> Attempt<UserRights> {
    let results = connection
        .text(
            "SELECT DATABASE(); SHOW GRANTS; SHOW CREATE USER CURRENT_USER(); SHOW GLOBAL VARIABLES WHERE \
             Variable_name IN ('require_secure_transport', 'innodb_flush_log_at_trx_commit')",
        )
        .await?;
    let mut rights = UserRights::default();
    let mut results = results.into_iter().map(Vec::into_iter);
    for row in results.next().into_iter().flatten() {
        rights.database = connection.get(&row, 0)?;
    }
    for row in results.next().into_iter().flatten() {
        rights.grants.push(connection.get(&row, 0)?);
    }
    for row in results.next().into_iter().flatten() {
        rights.user = connection.get(&row, 0)?;
    }
    for row in results.next().into_iter().flatten() {
        let (name, value): (String, String) = (connection.get(&row, 0)?, connection.get(&row, 1)?);
        match name.as_str() {
            "require_secure_transport" => rights.is_tls_required = value == "ON",
            _ => rights.is_durable = value == "1",
        }
    }
    Ok(rights)
}

impl UserRights {
    /// What could do harm.
    pub fn remarks(&self) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let mut risky = |what: String| remarks.push(Remark::new(Weight::Risky, what));
        let beyond: BTreeSet<_> = self
            .grants
            .iter()
            .filter_map(|grant| scope(grant))
            .filter(|scope| !self.is_ours(scope))
            .collect();
        if !beyond.is_empty() {
            let beyond = beyond.into_iter().collect::<Vec<_>>().join(", ");
            risky(format!(
                "our user has rights beyond its database, on {beyond}: everyone who gets its password has them too; see \
                 `SHOW GRANTS`, and leave it SELECT, INSERT, UPDATE, DELETE and CREATE on `{}`.*",
                self.database
            ));
        }
        if self.grants.iter().any(|grant| grant.contains(" WITH GRANT OPTION")) {
            risky("our user may give its rights to others: `REVOKE GRANT OPTION`".to_owned());
        }
        let demands = self.user.contains(" REQUIRE ") && !self.user.contains(" REQUIRE NONE");
        if !self.is_tls_required && !demands {
            risky("the database takes our user without TLS: `ALTER USER … REQUIRE SSL`".to_owned());
        }
        if !self.is_durable {
            risky(
                "innodb_flush_log_at_trx_commit is not 1: commits that were acknowledged can be lost with the server"
                    .to_owned(),
            );
        }
        remarks
    }

    /// Whether a scope is in our database.
    fn is_ours(&self, scope: &str) -> bool {
        let Some(rest) = scope.strip_prefix('`') else { return false };
        let Some((database, _)) = rest.split_once("`.") else { return false };
        // In a grant, `_` and `%` stand for other characters, unless a backslash is before them.
        database.replace('\\', "") == self.database && !database.replace("\\%", "").contains('%')
    }
}

/// The object of a grant; none if it gives no rights.
fn scope(grant: &str) -> Option<&str> {
    let (rights, rest) = grant.strip_prefix("GRANT ")?.split_once(" ON ")?;
    let (scope, _) = rest.split_once(" TO ")?;
    (rights != "USAGE").then_some(scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON `partage`.* TO `partage`@`%`";

    fn said(grants: &[&str], user: &str, is_tls_required: bool) -> String {
        let grants = grants.iter().map(|grant| (*grant).to_owned()).collect();
        let (database, user) = ("partage".to_owned(), user.to_owned());
        let rights = UserRights { database, grants, user, is_tls_required, is_durable: true };
        rights.remarks().into_iter().map(|remark| remark.what).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn rights_on_our_database_over_tls_are_right() {
        let usage = "GRANT USAGE ON *.* TO `partage`@`%` IDENTIFIED BY PASSWORD '*0' REQUIRE SSL";
        let user = "CREATE USER `partage`@`%` IDENTIFIED BY PASSWORD '*0' REQUIRE SSL";
        assert_eq!(said(&[usage, OURS], user, false), "");
        let user = "CREATE USER `partage`@`%` IDENTIFIED WITH 'caching_sha2_password' REQUIRE NONE PASSWORD EXPIRE DEFAULT";
        assert_eq!(said(&[OURS], user, true), "");
        assert!(said(&[OURS], user, false).contains("REQUIRE SSL"));
        let escaped = "GRANT ALL PRIVILEGES ON `part\\age`.* TO `partage`@`%`";
        assert_eq!(said(&[escaped], user, true), "");
    }

    #[test]
    fn rights_beyond_are_named_and_no_password_is() {
        for (grant, scope) in [
            ("GRANT ALL PRIVILEGES ON *.* TO `partage`@`%` IDENTIFIED BY PASSWORD '*0'", "*.*"),
            ("GRANT SELECT ON `theirs`.* TO `partage`@`%`", "`theirs`.*"),
            ("GRANT SELECT ON `p%`.* TO `partage`@`%`", "`p%`.*"),
        ] {
            let said = said(&[OURS, grant], "", true);
            assert!(said.contains(&format!("on {scope}:")) && !said.contains("*0"), "{said}");
        }
        let grant = format!("{OURS} WITH GRANT OPTION");
        assert!(said(&[&grant], "", true).contains("GRANT OPTION"));
    }
}
