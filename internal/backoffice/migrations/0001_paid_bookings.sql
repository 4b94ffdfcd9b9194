-- One row for each paid booking: docs/shapes.md says what the columns mean.
CREATE TABLE paid_bookings (
    sale           text        NOT NULL,
    candidate_hash text        NOT NULL,
    code           text        NOT NULL,
    attempt        text        COLLATE "C" NOT NULL, -- ids sort by time as bytes
    level          text        NOT NULL,
    amount         bigint      NOT NULL,             -- minor units
    currency       text        NOT NULL,
    payment_id     text        NOT NULL,
    transaction_id text        NOT NULL,
    paid_at        timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT paid_bookings_pkey PRIMARY KEY (sale, candidate_hash),
    CONSTRAINT paid_bookings_transaction_id_key UNIQUE (transaction_id)
);
