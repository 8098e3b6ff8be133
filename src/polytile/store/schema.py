"""The tables, as SQL that SQLite and PostgreSQL both read; `:name` parameters are those of sqlite3 and of
sqlalchemy.text.

Problems and environments are named by the digest of their content, so that stores taken on different machines can be
poured together: nothing in them refers to a row number. A measurement's `uid` is random and keeps it from being
poured in twice. The column `seconds` summarises `samples` and can be derived from them again; nothing in the tables
is a decision.
"""

from __future__ import annotations

VERSION = 1
APPLICATION_ID = 0x706F6C79
"""Marks a SQLite file as ours ("poly")."""

CREATE = """
CREATE TABLE IF NOT EXISTS problems (
    digest TEXT PRIMARY KEY, relatives TEXT NOT NULL, family TEXT NOT NULL, kernel TEXT NOT NULL, sizes TEXT NOT NULL,
    dtypes TEXT NOT NULL, layouts TEXT NOT NULL, device TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS environments (digest TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS measurements (
    id {serial} PRIMARY KEY, uid TEXT NOT NULL UNIQUE, taken_at DOUBLE PRECISION NOT NULL,
    problem TEXT NOT NULL REFERENCES problems (digest), environment TEXT NOT NULL REFERENCES environments (digest),
    candidate TEXT NOT NULL, config TEXT NOT NULL, source_hash TEXT NOT NULL, outcome TEXT NOT NULL,
    seconds DOUBLE PRECISION, noise DOUBLE PRECISION, samples TEXT NOT NULL, max_error DOUBLE PRECISION,
    compile_seconds DOUBLE PRECISION, detail TEXT NOT NULL, condition TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS measurements_by_environment ON measurements (environment)
"""
"""Statements apart by ';'. `{serial}` is INTEGER in SQLite (a row number) and BIGSERIAL in PostgreSQL."""

CREATE_SQLITE_ONLY = """
CREATE VIEW IF NOT EXISTS best AS
    SELECT p.family, p.kernel, p.sizes, p.device, m.environment, m.candidate, MIN(m.seconds) AS seconds
    FROM measurements m JOIN problems p ON p.digest = m.problem
    WHERE m.outcome = 'ok' GROUP BY m.problem, m.environment;
CREATE TRIGGER IF NOT EXISTS measurements_stay BEFORE UPDATE ON measurements
    BEGIN SELECT RAISE(ABORT, 'measurements are never overwritten'); END
"""
"""`best` is for people: the fastest measured candidate. What is launched also minds ties, order and validity:
tuning/decide.py."""

ADD_PROBLEM = """
INSERT INTO problems (digest, relatives, family, kernel, sizes, dtypes, layouts, device)
VALUES (:digest, :relatives, :family, :kernel, :sizes, :dtypes, :layouts, :device) ON CONFLICT DO NOTHING
"""
ADD_ENVIRONMENT = "INSERT INTO environments (digest, facts) VALUES (:digest, :facts) ON CONFLICT DO NOTHING"
ADD_MEASUREMENT = """
INSERT INTO measurements (uid, taken_at, problem, environment, candidate, config, source_hash, outcome, seconds, noise,
                          samples, max_error, compile_seconds, detail, condition)
VALUES (:uid, :taken_at, :problem, :environment, :candidate, :config, :source_hash, :outcome, :seconds, :noise,
        :samples, :max_error, :compile_seconds, :detail, :condition) ON CONFLICT DO NOTHING
"""
SUMMARIES = """
SELECT m.id, m.uid, m.problem, p.relatives, p.sizes, m.candidate, m.config, m.source_hash, m.outcome,
       m.seconds, m.noise, m.condition
FROM measurements m JOIN problems p ON p.digest = m.problem
WHERE p.device = :device AND m.environment = :environment AND m.id > :after ORDER BY m.id
"""
MEASUREMENTS = """
SELECT p.family, p.kernel, p.sizes, p.dtypes, p.layouts, p.device, e.facts, m.candidate, m.config, m.source_hash,
       m.outcome, m.samples, m.max_error, m.compile_seconds, m.detail, m.condition
FROM measurements m JOIN problems p ON p.digest = m.problem JOIN environments e ON e.digest = m.environment
ORDER BY m.id
"""
RECORDS = MEASUREMENTS.replace("SELECT ", "SELECT m.uid, m.taken_at, ", 1)
"""Rows of MEASUREMENTS with the name and the time of each: what a copy into another store has to keep."""


def statements(text: str) -> list[str]:
    """The statements of `text`, apart by lines that end in ';' (a trigger's inner ones do not)."""
    return [statement.strip() for statement in text.split(";\n") if statement.strip()]


__all__ = [
    "ADD_ENVIRONMENT",
    "ADD_MEASUREMENT",
    "ADD_PROBLEM",
    "APPLICATION_ID",
    "CREATE",
    "CREATE_SQLITE_ONLY",
    "MEASUREMENTS",
    "RECORDS",
    "SUMMARIES",
    "VERSION",
    "statements",
]
