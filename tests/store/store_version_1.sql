-- What schema version 1 wrote.
PRAGMA application_id = 1886350457;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
BEGIN TRANSACTION;
CREATE TABLE environments (digest TEXT PRIMARY KEY, facts TEXT NOT NULL);
INSERT INTO "environments" VALUES('e09912a54ecc40958adb5940','[["compiler","g++ 12"],["torch","2.13.0"]]');
CREATE TABLE measurements (
    id INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, taken_at DOUBLE PRECISION NOT NULL,
    problem TEXT NOT NULL REFERENCES problems (digest), environment TEXT NOT NULL REFERENCES environments (digest),
    candidate TEXT NOT NULL, config TEXT NOT NULL, source_hash TEXT NOT NULL, outcome TEXT NOT NULL,
    seconds DOUBLE PRECISION, noise DOUBLE PRECISION, samples TEXT NOT NULL, max_error DOUBLE PRECISION,
    compile_seconds DOUBLE PRECISION, detail TEXT NOT NULL, condition TEXT NOT NULL);
INSERT INTO "measurements" VALUES(1,'c32b065ee768d61458a2a6eb',1.79524526441931962968e+09,'bd90160c6700d4b816a63496','e09912a54ecc40958adb5940','looped t1','[[["threads",1]],[["M",64]]]','abc','ok',1.00135e-05,1.47226628568480552572e-03,'[1e-05,1.0009999999999999e-05,1.002e-05,1.003e-05,1.004e-05,1.005e-05,1.006e-05,1.007e-05,1.008e-05,1.009e-05]',1.0e-07,0.3,'','back-to-back');
INSERT INTO "measurements" VALUES(2,'1b1218f168609e89e7a0ca75',1.79524526444322395329e+09,'d92a9ddf5a2dae0f9316266a','e09912a54ecc40958adb5940','looped t1','[[["threads",1]],[["M",64]]]','abc','ok',1.00135e-05,1.47226628568480552572e-03,'[1e-05,1.0009999999999999e-05,1.002e-05,1.003e-05,1.004e-05,1.005e-05,1.006e-05,1.007e-05,1.008e-05,1.009e-05]',1.0e-07,0.3,'','back-to-back');
CREATE TABLE problems (
    digest TEXT PRIMARY KEY, relatives TEXT NOT NULL, family TEXT NOT NULL, kernel TEXT NOT NULL, sizes TEXT NOT NULL,
    dtypes TEXT NOT NULL, layouts TEXT NOT NULL, device TEXT NOT NULL);
INSERT INTO "problems" VALUES('bd90160c6700d4b816a63496','5e17c63111dbed2de157d057','loop','k0','[["M",1],["N",512]]','["float32","float32"]','["threads=2"]','cpu-x');
INSERT INTO "problems" VALUES('d92a9ddf5a2dae0f9316266a','5e17c63111dbed2de157d057','loop','k0','[["M",2],["N",512]]','["float32","float32"]','["threads=2"]','cpu-x');
CREATE INDEX measurements_by_environment ON measurements (environment);
CREATE VIEW best AS
    SELECT p.family, p.kernel, p.sizes, p.device, m.environment, m.candidate, MIN(m.seconds) AS seconds
    FROM measurements m JOIN problems p ON p.digest = m.problem
    WHERE m.outcome = 'ok' GROUP BY m.problem, m.environment;
CREATE TRIGGER measurements_stay BEFORE UPDATE ON measurements
    BEGIN SELECT RAISE(ABORT, 'measurements are never overwritten'); END;
COMMIT;
