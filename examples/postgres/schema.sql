-- The half that only the database can do: refuse an old incarnation, and take an operation once.

create table if not exists invoice (
    id      bigint primary key,
    amount  numeric not null
);

-- The highest token that was seen of each session.
create table if not exists fence (
    session text primary key,
    epoch   bigint not null
);

create table if not exists payment (
    key     text primary key,  -- holdfast.app.idempotency_key
    invoice bigint not null,
    amount  numeric not null,
    session text not null,     -- who paid, for people
    epoch   bigint not null
);

-- Refuses a token that is lower than the highest one. The row stays locked until the end of the
-- transaction: a write with a lower token cannot slip in between the check and the commit.
create or replace function fence(by_session text, by_epoch bigint) returns void
language plpgsql as $$
declare
    highest bigint;
begin
    insert into fence as f values (by_session, by_epoch)
        on conflict (session) do update set epoch = greatest(f.epoch, excluded.epoch)
        returning f.epoch into highest;
    if by_epoch < highest then
        raise exception 'stale token: session % has epoch %, and this write has %',
            by_session, highest, by_epoch
            using errcode = 'HF001';
    end if;
end
$$;

-- One payment: token, key and effect in one transaction. Returns false if it was made before.
create or replace function pay(
    by_session text, by_epoch bigint, by_key text, of_invoice bigint, of_amount numeric
) returns boolean
language plpgsql as $$
begin
    perform fence(by_session, by_epoch);
    insert into payment values (by_key, of_invoice, of_amount, by_session, by_epoch)
        on conflict (key) do nothing;
    return found;
end
$$;
