-- The tables of a journal that version 0.1 made.
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE run (
	id VARCHAR(200) NOT NULL, 
	recipe JSON NOT NULL, 
	substance JSON NOT NULL, 
	created_ms BIGINT NOT NULL, 
	CONSTRAINT pk_run PRIMARY KEY (id)
);
CREATE TABLE delivery (
	id INTEGER NOT NULL, 
	run VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	engine VARCHAR(200) NOT NULL, 
	version INTEGER NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	tensors INTEGER NOT NULL, 
	seconds FLOAT NOT NULL, 
	tokenizer VARCHAR(64) NOT NULL, 
	proven BOOLEAN NOT NULL, 
	canary_difference FLOAT, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_delivery PRIMARY KEY (id), 
	CONSTRAINT fk_delivery_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE driver (
	run VARCHAR(200) NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	process_start VARCHAR(64) NOT NULL, 
	seen_ms BIGINT NOT NULL, 
	CONSTRAINT pk_driver PRIMARY KEY (run), 
	CONSTRAINT fk_driver_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE dual_step (
	run VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	"constraint" VARCHAR(100) NOT NULL, 
	value FLOAT NOT NULL, 
	standard_error FLOAT NOT NULL, 
	responses INTEGER NOT NULL, 
	labels_each INTEGER NOT NULL, 
	mode VARCHAR(50) NOT NULL, 
	multiplier_before FLOAT NOT NULL, 
	multiplier_after FLOAT NOT NULL, 
	eta FLOAT NOT NULL, 
	bias_allowance FLOAT NOT NULL, 
	CONSTRAINT pk_dual_step PRIMARY KEY (run, round, "constraint"), 
	CONSTRAINT fk_dual_step_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE metric (
	run VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	value FLOAT, 
	CONSTRAINT pk_metric PRIMARY KEY (run, round, name), 
	CONSTRAINT fk_metric_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE phase (
	run VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	phase VARCHAR(100) NOT NULL, 
	started_ms BIGINT NOT NULL, 
	finished_ms BIGINT NOT NULL, 
	payload JSON NOT NULL, 
	CONSTRAINT pk_phase PRIMARY KEY (run, round, phase), 
	CONSTRAINT fk_phase_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE prompt (
	run VARCHAR(200) NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	token_ids JSON NOT NULL, 
	text TEXT NOT NULL, 
	CONSTRAINT pk_prompt PRIMARY KEY (run, id), 
	CONSTRAINT fk_prompt_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE round (
	run VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	started_ms BIGINT NOT NULL, 
	finished_ms BIGINT, 
	CONSTRAINT pk_round PRIMARY KEY (run, round), 
	CONSTRAINT fk_round_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE version (
	run VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	stage VARCHAR(20) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	path TEXT NOT NULL, 
	base INTEGER, 
	multiplier FLOAT, 
	metrics JSON NOT NULL, 
	workers JSON NOT NULL, 
	CONSTRAINT pk_version PRIMARY KEY (run, number), 
	CONSTRAINT fk_version_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE sample (
	run VARCHAR(200) NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	purpose VARCHAR(50) NOT NULL, 
	position INTEGER NOT NULL, 
	prompt VARCHAR(200) NOT NULL, 
	token_ids JSON NOT NULL, 
	text TEXT NOT NULL, 
	policy_version INTEGER NOT NULL, 
	seed BIGINT NOT NULL, 
	log_prob FLOAT, 
	CONSTRAINT pk_sample PRIMARY KEY (run, id), 
	CONSTRAINT fk_sample_run_prompt FOREIGN KEY(run, prompt) REFERENCES prompt (run, id)
);
CREATE TABLE pair (
	run VARCHAR(200) NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	first VARCHAR(200) NOT NULL, 
	second VARCHAR(200) NOT NULL, 
	CONSTRAINT pk_pair PRIMARY KEY (run, id), 
	CONSTRAINT fk_pair_run_first FOREIGN KEY(run, first) REFERENCES sample (run, id), 
	CONSTRAINT fk_pair_run_second FOREIGN KEY(run, second) REFERENCES sample (run, id)
);
CREATE TABLE safety_label (
	run VARCHAR(200) NOT NULL, 
	sample VARCHAR(200) NOT NULL, 
	"constraint" VARCHAR(100) NOT NULL, 
	source INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	policy_version INTEGER NOT NULL, 
	labeller VARCHAR(200) NOT NULL, 
	label VARCHAR(20) NOT NULL, 
	CONSTRAINT pk_safety_label PRIMARY KEY (run, sample, "constraint", source), 
	CONSTRAINT fk_safety_label_run_sample FOREIGN KEY(run, sample) REFERENCES sample (run, id)
);
CREATE TABLE pair_label (
	run VARCHAR(200) NOT NULL, 
	pair VARCHAR(200) NOT NULL, 
	source INTEGER NOT NULL, 
	labeller VARCHAR(200) NOT NULL, 
	helpful VARCHAR(20) NOT NULL, 
	harmful VARCHAR(20) NOT NULL, 
	further JSON NOT NULL, 
	CONSTRAINT pk_pair_label PRIMARY KEY (run, pair, source), 
	CONSTRAINT fk_pair_label_run_pair FOREIGN KEY(run, pair) REFERENCES pair (run, id)
);
CREATE TABLE annotator (
	id VARCHAR(64) NOT NULL, 
	handle VARCHAR(100) NOT NULL, 
	role VARCHAR(20) NOT NULL, 
	token_sha256 VARCHAR(64) NOT NULL, 
	token_prefix VARCHAR(20) NOT NULL, 
	active BOOLEAN NOT NULL, 
	sees_harmful BOOLEAN NOT NULL, 
	daily_cap INTEGER NOT NULL, 
	created_ms BIGINT NOT NULL, 
	CONSTRAINT pk_annotator PRIMARY KEY (id), 
	CONSTRAINT uq_annotator_handle UNIQUE (handle), 
	CONSTRAINT uq_annotator_token_sha256 UNIQUE (token_sha256)
);
CREATE TABLE audit_event (
	seq INTEGER NOT NULL, 
	at_ms BIGINT NOT NULL, 
	actor VARCHAR(64) NOT NULL, 
	action VARCHAR(60) NOT NULL, 
	object VARCHAR(200) NOT NULL, 
	data JSON NOT NULL, 
	previous VARCHAR(64) NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_audit_event PRIMARY KEY (seq), 
	CONSTRAINT uq_audit_event_previous UNIQUE (previous)
);
CREATE TABLE campaign (
	run VARCHAR(200) NOT NULL, 
	paused BOOLEAN NOT NULL, 
	CONSTRAINT pk_campaign PRIMARY KEY (run), 
	CONSTRAINT fk_campaign_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE guideline (
	run VARCHAR(200) NOT NULL, 
	version INTEGER NOT NULL, 
	markdown TEXT NOT NULL, 
	"by" VARCHAR(64) NOT NULL, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_guideline PRIMARY KEY (run, version), 
	CONSTRAINT fk_guideline_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE login (
	id_sha256 VARCHAR(64) NOT NULL, 
	annotator VARCHAR(64) NOT NULL, 
	csrf VARCHAR(64) NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	revoked_ms BIGINT, 
	CONSTRAINT pk_login PRIMARY KEY (id_sha256), 
	CONSTRAINT fk_login_annotator FOREIGN KEY(annotator) REFERENCES annotator (id)
);
CREATE TABLE question_round (
	id VARCHAR(64) NOT NULL, 
	run VARCHAR(200) NOT NULL, 
	round INTEGER NOT NULL, 
	purpose VARCHAR(100) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	labels_each INTEGER NOT NULL, 
	priority INTEGER NOT NULL, 
	opened_ms BIGINT NOT NULL, 
	deadline_ms BIGINT, 
	state VARCHAR(20) NOT NULL, 
	content_sha256 VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_question_round PRIMARY KEY (id), 
	CONSTRAINT fk_question_round_run FOREIGN KEY(run) REFERENCES run (id), 
	CONSTRAINT uq_question_round_purpose UNIQUE (run, round, purpose)
);
CREATE TABLE snapshot (
	question_round VARCHAR(64) NOT NULL, 
	content JSON NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_snapshot PRIMARY KEY (question_round), 
	CONSTRAINT fk_snapshot_question_round FOREIGN KEY(question_round) REFERENCES question_round (id)
);
CREATE TABLE task (
	id VARCHAR(64) NOT NULL, 
	question_round VARCHAR(64) NOT NULL, 
	position INTEGER NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	item VARCHAR(200) NOT NULL, 
	prompt TEXT NOT NULL, 
	first TEXT NOT NULL, 
	second TEXT, 
	provenance JSON NOT NULL, 
	risk FLOAT NOT NULL, 
	priority FLOAT NOT NULL, 
	gold JSON, 
	needed INTEGER NOT NULL, 
	seats INTEGER NOT NULL, 
	leased INTEGER NOT NULL, 
	refusals INTEGER NOT NULL, 
	state VARCHAR(20) NOT NULL, balance INTEGER GENERATED ALWAYS AS (CASE WHEN state = 'open' AND gold IS NULL THEN seats + leased - needed ELSE 0 END) VIRTUAL, 
	CONSTRAINT pk_task PRIMARY KEY (id), 
	CONSTRAINT ck_task_capacity CHECK (seats >= 0 AND leased >= 0 AND seats + leased <= needed), 
	CONSTRAINT fk_task_question_round FOREIGN KEY(question_round) REFERENCES question_round (id), 
	CONSTRAINT uq_task_needed UNIQUE (id, needed), 
	CONSTRAINT uq_task_position UNIQUE (question_round, position)
);
CREATE TABLE lease (
	id VARCHAR(64) NOT NULL, 
	task VARCHAR(64) NOT NULL, 
	annotator VARCHAR(64) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	leased_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	swap BOOLEAN NOT NULL, 
	guideline INTEGER NOT NULL, 
	CONSTRAINT pk_lease PRIMARY KEY (id), 
	CONSTRAINT fk_lease_annotator FOREIGN KEY(annotator) REFERENCES annotator (id), 
	CONSTRAINT fk_lease_task FOREIGN KEY(task) REFERENCES task (id), 
	CONSTRAINT uq_lease_person UNIQUE (task, annotator)
);
CREATE TABLE answer (
	seq INTEGER NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	lease VARCHAR(64) NOT NULL, 
	task VARCHAR(64) NOT NULL, 
	annotator VARCHAR(64) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	given JSON NOT NULL, 
	reason VARCHAR(40) NOT NULL, 
	note TEXT NOT NULL, 
	ms_spent BIGINT NOT NULL, 
	revealed BOOLEAN NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	late BOOLEAN NOT NULL, 
	guideline INTEGER NOT NULL, 
	swap BOOLEAN NOT NULL, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_answer PRIMARY KEY (seq), 
	CONSTRAINT fk_answer_annotator FOREIGN KEY(annotator) REFERENCES annotator (id), 
	CONSTRAINT fk_answer_lease FOREIGN KEY(lease) REFERENCES lease (id), 
	CONSTRAINT fk_answer_task FOREIGN KEY(task) REFERENCES task (id), 
	CONSTRAINT uq_answer_key UNIQUE ("key")
);
CREATE TABLE seat (
	task VARCHAR(64) NOT NULL, 
	place INTEGER NOT NULL, 
	needed INTEGER NOT NULL, 
	annotator VARCHAR(64) NOT NULL, 
	answer INTEGER NOT NULL, 
	CONSTRAINT pk_seat PRIMARY KEY (task, place), 
	CONSTRAINT ck_seat_place CHECK (place >= 0 AND place < needed), 
	CONSTRAINT fk_seat_annotator FOREIGN KEY(annotator) REFERENCES annotator (id), 
	CONSTRAINT fk_seat_answer FOREIGN KEY(answer) REFERENCES answer (seq), 
	CONSTRAINT fk_seat_task_needed FOREIGN KEY(task, needed) REFERENCES task (id, needed), 
	CONSTRAINT uq_seat_answer UNIQUE (answer), 
	CONSTRAINT uq_seat_person UNIQUE (task, annotator)
);
CREATE TABLE withdrawal (
	answer INTEGER NOT NULL, 
	"by" VARCHAR(64) NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	reason TEXT NOT NULL, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_withdrawal PRIMARY KEY (answer), 
	CONSTRAINT fk_withdrawal_answer FOREIGN KEY(answer) REFERENCES answer (seq)
);
CREATE TABLE release (
	id INTEGER NOT NULL, 
	run VARCHAR(200) NOT NULL, 
	action VARCHAR(20) NOT NULL, 
	round INTEGER, 
	"by" VARCHAR(100) NOT NULL, 
	reason TEXT NOT NULL, 
	at_ms BIGINT NOT NULL, 
	CONSTRAINT pk_release PRIMARY KEY (id), 
	CONSTRAINT fk_release_run FOREIGN KEY(run) REFERENCES run (id)
);
CREATE TABLE api_key (
	run VARCHAR(200) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	key_sha256 VARCHAR(64) NOT NULL, 
	key_prefix VARCHAR(20) NOT NULL, 
	scope VARCHAR(20) NOT NULL, 
	requests_per_minute FLOAT NOT NULL, 
	tokens_per_minute FLOAT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	revoked_ms BIGINT, 
	CONSTRAINT pk_api_key PRIMARY KEY (run, name), 
	CONSTRAINT fk_api_key_run FOREIGN KEY(run) REFERENCES run (id), 
	CONSTRAINT uq_api_key_key_sha256 UNIQUE (key_sha256)
);
CREATE INDEX ix_delivery_run ON delivery (run, round);
CREATE UNIQUE INDEX ix_sample_round_purpose ON sample (run, round, purpose, position);
CREATE UNIQUE INDEX ix_pair_round ON pair (run, round, position);
CREATE INDEX ix_safety_label_round ON safety_label (run, round, "constraint", position, source);
CREATE INDEX ix_question_round_state ON question_round (run, state);
CREATE INDEX ix_task_state ON task (question_round, state);
CREATE INDEX ix_lease_annotator ON lease (annotator, state);
CREATE INDEX ix_lease_expiry ON lease (state, expires_ms);
CREATE INDEX ix_answer_annotator ON answer (annotator, at_ms);
CREATE INDEX ix_answer_task ON answer (task);
CREATE INDEX ix_release_run ON release (run, id);
CREATE INDEX ix_task_offer ON task (question_round, balance, priority, id, risk);
CREATE TRIGGER answer_no_update BEFORE UPDATE ON answer BEGIN SELECT RAISE(ABORT, 'answer is append-only'); END;
CREATE TRIGGER answer_no_delete BEFORE DELETE ON answer BEGIN SELECT RAISE(ABORT, 'answer is append-only'); END;
CREATE TRIGGER withdrawal_no_update BEFORE UPDATE ON withdrawal BEGIN SELECT RAISE(ABORT, 'withdrawal is append-only'); END;
CREATE TRIGGER withdrawal_no_delete BEFORE DELETE ON withdrawal BEGIN SELECT RAISE(ABORT, 'withdrawal is append-only'); END;
CREATE TRIGGER snapshot_no_update BEFORE UPDATE ON snapshot BEGIN SELECT RAISE(ABORT, 'snapshot is append-only'); END;
CREATE TRIGGER snapshot_no_delete BEFORE DELETE ON snapshot BEGIN SELECT RAISE(ABORT, 'snapshot is append-only'); END;
CREATE TRIGGER audit_event_no_update BEFORE UPDATE ON audit_event BEGIN SELECT RAISE(ABORT, 'audit_event is append-only'); END;
CREATE TRIGGER audit_event_no_delete BEFORE DELETE ON audit_event BEGIN SELECT RAISE(ABORT, 'audit_event is append-only'); END;
INSERT INTO alembic_version VALUES ('0004');
