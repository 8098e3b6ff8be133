"""The tables and the questions asked of them, as SQL that SQLite and PostgreSQL both read.

Parameters are written `:name`, as Python's sqlite3 takes them; postgres.py rewrites the mark and nothing else. Where the two
differ in spelling, statements have a word in braces, and the table `SPELLINGS` has its spellings.

Problems, environments and devices are named by the digest of their content, so that stores of different machines can be merged:
nothing in them refers to a row number. A measurement's `uid` is random, so that merging adds it only once. The column `seconds`
summarises `samples` and can be derived from them again; nothing in the tables is a decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.problem import Outcome
from polytile.store.records import GATE, compact

VERSION = 5
APPLICATION_ID = 0x706F6C79
"""Marks a SQLite file as ours ("poly")."""

SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "sqlite": {"serial": "INTEGER", "real": "DOUBLE PRECISION", "json": "TEXT", "reals": "TEXT"},
    "postgresql": {"serial": "BIGSERIAL", "real": "DOUBLE PRECISION", "json": "JSON", "reals": "DOUBLE PRECISION[]"},
}
"""How each database spells a numbered row, a float64, JSON text, and a list of float64 (SQLite: as JSON text)."""

CREATE = (
    """
CREATE TABLE problems (
    digest TEXT PRIMARY KEY, relatives TEXT NOT NULL, family TEXT NOT NULL, kernel TEXT NOT NULL, sizes {json} NOT NULL,
    dtypes {json} NOT NULL, layouts {json} NOT NULL, device TEXT NOT NULL)""",
    "CREATE TABLE environments (digest TEXT PRIMARY KEY, facts {json} NOT NULL)",
    "CREATE TABLE devices (fingerprint TEXT PRIMARY KEY, facts {json} NOT NULL)",
    """
CREATE TABLE measurements (
    id {serial} PRIMARY KEY, uid TEXT NOT NULL UNIQUE, taken_at {real} NOT NULL,
    problem TEXT NOT NULL REFERENCES problems (digest), environment TEXT NOT NULL REFERENCES environments (digest),
    candidate TEXT NOT NULL, config {json} NOT NULL, source_hash TEXT NOT NULL, outcome TEXT NOT NULL,
    seconds {real}, noise {real}, samples {reals} NOT NULL, max_error {real},
    compile_seconds {real}, detail TEXT NOT NULL, condition TEXT NOT NULL, origin TEXT NOT NULL DEFAULT '',
    predicted {real}, registers INTEGER, spilled_bytes INTEGER, shared_bytes INTEGER, state {json} NOT NULL DEFAULT '[]')""",
    "CREATE INDEX measurements_by_environment ON measurements (environment)",
    "{candidates}",
    "{decisions}",
)

CANDIDATES = """
CREATE VIEW candidates AS
    SELECT m.candidate AS name, CAST(m.config AS TEXT) AS config, m.source_hash, m.origin, p.family, p.kernel, p.device,
        MAX(m.registers) AS registers, MAX(m.spilled_bytes) AS spilled_bytes, MAX(m.shared_bytes) AS shared_bytes,
        MAX(m.compile_seconds) AS compile_seconds, COUNT(*) AS measurements,
        SUM(CASE WHEN m.outcome = 'ok' THEN 1 ELSE 0 END) AS ok, MAX(m.taken_at) AS newest
    FROM measurements m JOIN problems p ON p.digest = m.problem
    GROUP BY m.candidate, CAST(m.config AS TEXT), m.source_hash, m.origin, p.family, p.kernel, p.device"""
"""Each candidate of each kernel: name, config and source hash are who it is, and what is known of it. A view, as these are
columns of each measurement: one row says all there is to say about an attempt."""

WRONG = f"(outcome = '{Outcome.WRONG.value}' AND CAST(state AS TEXT) LIKE '%{compact(GATE)}%')"
"""Whether a measurement has the verdict of the accuracy gate as it is now that the result was wrong."""

DECISIONS = f"""
CREATE VIEW decisions AS
    WITH runs AS (
        SELECT id, problem, environment, candidate, config, source_hash, outcome, seconds,
            ROW_NUMBER() OVER (PARTITION BY problem, environment, candidate, CAST(config AS TEXT), source_hash
                               ORDER BY id DESC) AS age,
            ROW_NUMBER() OVER (PARTITION BY problem, environment, candidate, CAST(config AS TEXT), source_hash, outcome
                               ORDER BY seconds) AS place,
            COUNT(*) OVER (PARTITION BY problem, environment, candidate, CAST(config AS TEXT), source_hash, outcome) AS times,
            SUM(CASE WHEN {WRONG} THEN 1 ELSE 0 END) OVER (
                PARTITION BY problem, environment, candidate, CAST(config AS TEXT), source_hash) AS wrong
        FROM measurements WHERE condition = 'back-to-back' AND (outcome <> '{Outcome.WRONG.value}' OR {WRONG})),
    able AS (
        SELECT problem, environment, candidate, CAST(config AS TEXT) AS config, source_hash FROM runs
        WHERE age = 1 AND outcome = 'ok' AND wrong = 0),
    ranked AS (
        SELECT r.problem, r.environment, r.candidate, r.config, r.source_hash, r.seconds,
            ROW_NUMBER() OVER (PARTITION BY r.problem, r.environment ORDER BY r.seconds, r.id) AS place
        FROM runs r JOIN able a ON a.problem = r.problem AND a.environment = r.environment
            AND a.candidate = r.candidate AND a.config = CAST(r.config AS TEXT) AND a.source_hash = r.source_hash
        WHERE r.outcome = 'ok' AND r.place = (r.times + 1) / 2)
    SELECT p.family, p.kernel, p.sizes, p.device, k.environment, k.candidate, k.config, k.source_hash, k.seconds
    FROM ranked k JOIN problems p ON p.digest = k.problem WHERE k.place = 1"""
"""For people: the fastest candidate of each problem in each environment, by the rules of tuning/decide.py (a wrong result
by the gate's present rules is final, the newest measurement says whether it runs, the lower median counts,
also where those rules take the mean of the middle half of many). What is launched minds ties, the cost of parallel regions and
validity as well, which no table holds."""

KEEP = {
    "sqlite": (
        """
CREATE TRIGGER measurements_stay BEFORE UPDATE ON measurements
    BEGIN SELECT RAISE(ABORT, 'measurements are never overwritten'); END""",
    ),
    "postgresql": (
        """
CREATE FUNCTION measurements_stay() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''measurements are never overwritten''; END'""",
        """
CREATE TRIGGER measurements_stay BEFORE UPDATE ON measurements
    FOR EACH ROW EXECUTE FUNCTION measurements_stay()""",
    ),
}
"""The triggers that keep measurements from being changed."""

LIFT = {
    "sqlite": ("DROP TRIGGER measurements_stay",),
    "postgresql": ("DROP TRIGGER measurements_stay ON measurements", "DROP FUNCTION measurements_stay()"),
}
"""Drops these triggers while a migration renames things."""

MIGRATIONS: Mapping[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE devices (fingerprint TEXT PRIMARY KEY, facts {json} NOT NULL)",
        "ALTER TABLE measurements ADD COLUMN origin TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE measurements ADD COLUMN predicted {real}",
        "ALTER TABLE measurements ADD COLUMN registers INTEGER",
        "ALTER TABLE measurements ADD COLUMN spilled_bytes INTEGER",
        "ALTER TABLE measurements ADD COLUMN shared_bytes INTEGER",
        "ALTER TABLE measurements ADD COLUMN state {json} NOT NULL DEFAULT '[]'",
        "DROP VIEW best",
        "{decisions}",
    ),
    2: ("{candidates}",),
    3: ("DROP VIEW decisions", "{decisions}"),
    4: (),  # names alone: migration.py
}
"""Version → what makes the next one of it. Only ever adds columns, tables and views: no measurement is rewritten."""

ADD_PROBLEM = """
INSERT INTO problems (digest, relatives, family, kernel, sizes, dtypes, layouts, device)
VALUES (:digest, :relatives, :family, :kernel, :sizes, :dtypes, :layouts, :device) ON CONFLICT DO NOTHING
"""
ADD_ENVIRONMENT = "INSERT INTO environments (digest, facts) VALUES (:digest, :facts) ON CONFLICT DO NOTHING"
ADD_DEVICE = "INSERT INTO devices (fingerprint, facts) VALUES (:fingerprint, :facts) ON CONFLICT DO NOTHING"
ADD_MEASUREMENT = """
INSERT INTO measurements (uid, taken_at, problem, environment, candidate, config, source_hash, outcome, seconds, noise,
                          samples, max_error, compile_seconds, detail, condition, origin, predicted, registers,
                          spilled_bytes, shared_bytes, state)
VALUES (:uid, :taken_at, :problem, :environment, :candidate, :config, :source_hash, :outcome, :seconds, :noise,
        :samples, :max_error, :compile_seconds, :detail, :condition, :origin, :predicted, :registers,
        :spilled_bytes, :shared_bytes, :state) ON CONFLICT DO NOTHING
"""
SUMMARIES = """
SELECT m.id, m.uid, m.problem, p.relatives, p.sizes, m.candidate, m.config, m.source_hash, m.outcome,
       m.seconds, m.noise, m.condition, m.state
FROM measurements m JOIN problems p ON p.digest = m.problem
WHERE p.device = :device AND m.environment = :environment AND m.id > :after ORDER BY m.id
"""
RECORDS = """
SELECT m.uid, m.taken_at, p.family, p.kernel, p.sizes, p.dtypes, p.layouts, p.device, e.facts, m.candidate, m.config,
       m.source_hash, m.outcome, m.samples, m.max_error, m.compile_seconds, m.detail, m.condition, m.origin, m.predicted,
       m.registers, m.spilled_bytes, m.shared_bytes, m.state, d.facts, m.problem, m.environment, m.seconds
FROM measurements m JOIN problems p ON p.digest = m.problem JOIN environments e ON e.digest = m.environment
    LEFT JOIN devices d ON d.fingerprint = p.device
ORDER BY m.id
"""
"""Everything about each measurement; the last three columns follow from the others."""

UIDS = "SELECT uid FROM measurements"

COUNTS = {
    "measurements": "SELECT count(*) FROM measurements",
    "problems": "SELECT count(*) FROM problems",
    "kernels": "SELECT count(DISTINCT kernel) FROM problems",
    "devices": "SELECT count(DISTINCT device) FROM problems",
    "environments": "SELECT count(*) FROM environments",
}
OUTCOMES = "SELECT outcome, count(*) FROM measurements GROUP BY outcome"
SPAN = "SELECT min(taken_at), max(taken_at) FROM measurements"
ORPHANS = """
SELECT count(*) FROM measurements WHERE problem NOT IN (SELECT digest FROM problems)
    OR environment NOT IN (SELECT digest FROM environments)
"""

SOURCES = """
SELECT m.id, m.taken_at, m.environment, e.facts, p.family, p.kernel, p.device, m.candidate, m.config, m.source_hash
FROM measurements m JOIN problems p ON p.digest = m.problem JOIN environments e ON e.digest = m.environment
ORDER BY m.taken_at, m.id
"""
"""Whose source each measurement is of, and where and when it was taken: for cleanup.py."""

REMOVE = "DELETE FROM measurements WHERE id = :id"
REMOVE_UNUSED = (
    "DELETE FROM problems WHERE digest NOT IN (SELECT problem FROM measurements)",
    "DELETE FROM environments WHERE digest NOT IN (SELECT environment FROM measurements)",
    "DELETE FROM devices WHERE fingerprint NOT IN (SELECT device FROM problems)",
)


def creation(database: str) -> list[str]:
    """The statements that make the tables in "sqlite" or "postgresql"."""
    return [_spelled(statement, database) for statement in CREATE] + list(KEEP[database])


def migration(version: int, database: str) -> list[str]:
    """The statements that turn the tables of an older `version` ≥ 1 into this version's."""
    return [_spelled(text, database) for step in range(version, VERSION) for text in MIGRATIONS[step]]


def _spelled(statement: str, database: str) -> str:
    return statement.format(**SPELLINGS[database], candidates=CANDIDATES, decisions=DECISIONS)
