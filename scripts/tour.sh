#!/usr/bin/env bash
# A sale in ten minutes: loads, opens, watches, closes and audits a sale of three
# seats on a deployment of its own, and prints each command before it runs. It needs
# Go, bash and curl, leaves nothing behind, and ends with 0 when all went as it should.
# docs/tour.txt is a recorded run.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
server=

end() {
  status=$?
  trap - EXIT
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" || true
  fi
  if [ "$status" -ne 0 ]; then
    echo "The tour ended with exit status $status. The server's last lines:" >&2
    tail -n 20 "$work/log" >&2 || true
  fi
  rm -rf "$work"
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

say() {
  echo
  printf '# %s\n' "$@"
}
# run prints a command as one would type it, and runs it.
run() {
  printf '$ %s\n' "$1"
  eval "$1"
}
# field NAME prints one text of the JSON object on stdin.
field() { sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'; }

say "The programs: local is a whole deployment in one process, seatctl the operator's tool."
cd "$repository"
run 'go build -o "$work/bin/" ./cmd/local ./cmd/seatctl'
run 'cd "$work"'

say "A deployment with booking closed, in the background. It has put a demo sale into force."
printf '$ bin/local -closed -data data -addr 127.0.0.1:0 >addresses 2>log &\n'
: >addresses
bin/local -closed -data data -addr 127.0.0.1:0 >>addresses 2>log &
server=$!
until [ "$(wc -l <addresses)" -ge 4 ]; do
  kill -0 "$server" 2>/dev/null || exit 1 # its last lines say why
  sleep 0.1
done
run 'cat addresses'
run "page=\$(sed -n '1s|/\$||p' addresses)"

say "Our own sale: three seats in two levels, whose caps add up to more."
cat >sale.yaml <<'SALE'
name: tour-2026
currency: BDT
cap: 3
hold: 10m
levels:
  - {id: N1, name: "N1 Advanced", cap: 2, fee: "1500.00"}
  - {id: N2, name: "N2 Upper intermediate", cap: 2, fee: "1400.00"}
SALE
run 'cat sale.yaml'
say "What would it change? Then it is put into force; without --yes it asks."
run 'bin/seatctl sale apply sale.yaml --dry-run --data data'
run 'bin/seatctl sale apply sale.yaml --yes --data data'

say "Who may book: five candidates in the place of the demo's two thousand. To drop that many takes a flag."
head -n 6 "$repository/examples/candidates.csv" >candidates.csv
run 'cat candidates.csv'
run 'bin/seatctl candidates load candidates.csv --allow-removals --yes --data data'

say "Open. It looks first at what must be right."
run 'bin/seatctl open --yes --data data'

say "Three candidates want N1, which has two seats; a fourth takes the last seat, in N2."
book() {
  run "curl -s \"\$page/book\" -H 'Content-Type: application/json' -d '{\"code\":\"AB-10000$1\",\"email\":\"candidate10000$1@example.org\",\"level\":\"$2\"}' | tee booking$1"
}
book 1 N1
book 2 N1
book 3 N1
book 4 N2

say "The first two pay at the gateway's page, which a browser would show, and come home."
for i in 1 2; do
  payment_url=$(field payment_url <booking$i)
  booking_url=$(field booking_url <booking$i)
  run 'curl -sL -o /dev/null -d outcome=success "$payment_url"'
  run 'curl -s "$booking_url"'
done

say "Watch: seats, rows, money, queue, processes, alarms. In a terminal of its own: --watch." \
  "An alarm that looks back two minutes is short of history when it has seen two seconds."
run 'bin/seatctl status --data data'

say "Close. It is done when nobody can be admitted any more, and the page says so."
run 'bin/seatctl close --reason "the tour is over" --data data'

say "Is it correct? Ledger, store, queue, page and the gateway's own word, rule by rule."
run 'bin/seatctl audit --gateway --data data'

say "Who did what? Each change of the sale, with how it stood before and after."
run 'bin/seatctl log --data data'

say "The end: the deployment is stopped, its folder removed."
