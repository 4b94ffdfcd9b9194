// Package lua embeds the scripts of the seat ledger. Each .lua file is one
// operation with its contract in the header; prelude.lua goes before each of
// them, and then allowlist.lua before the steps of a load of the allowlist. Package
// admission is their only caller. To run one by hand:
//
//	cat prelude.lua look.lua >/tmp/look.lua
//	redis-cli --eval /tmp/look.lua KEY... , ARG...
package lua

import _ "embed"

//go:embed prelude.lua
var prelude string

var (
	//go:embed admit.lua
	admit string
	//go:embed attach.lua
	attach string
	//go:embed queued.lua
	queued string
	//go:embed undo.lua
	undo string
	//go:embed begin_pay.lua
	beginPay string
	//go:embed end_pay.lua
	endPay string
	//go:embed settle.lua
	settle string
	//go:embed release.lua
	release string
	//go:embed late.lua
	late string
	//go:embed notices.lua
	notices string
	//go:embed done.lua
	done string
	//go:embed extend.lua
	extend string
	//go:embed postpone.lua
	postpone string
	//go:embed due.lua
	due string
	//go:embed look.lua
	look string
	//go:embed switch.lua
	switchBooking string
	//go:embed apply_sale.lua
	applySale string
	//go:embed candidates.lua
	candidates string
	//go:embed allowlist.lua
	allowlist string
	//go:embed allowlist_turn.lua
	allowlistTurn string
	//go:embed allowlist_stage.lua
	allowlistStage string
	//go:embed allowlist_swap.lua
	allowlistSwap string
	//go:embed allowlist_emails.lua
	allowlistEmails string
	//go:embed restore.lua
	restore string
	//go:embed reset.lua
	reset string
	//go:embed purge.lua
	purge string
	//go:embed snapshot.lua
	snapshot string
	//go:embed published.lua
	published string
)

// The scripts, complete with their prelude.
var (
	Admit      = prelude + admit
	Attach     = prelude + attach
	Queued     = prelude + queued
	Undo       = prelude + undo
	BeginPay   = prelude + beginPay
	EndPay     = prelude + endPay
	Settle     = prelude + settle
	Release    = prelude + release
	Late       = prelude + late
	Notices    = prelude + notices
	Done       = prelude + done
	Extend     = prelude + extend
	Postpone   = prelude + postpone
	Due        = prelude + due
	Look       = prelude + look
	Switch     = prelude + switchBooking
	ApplySale  = prelude + applySale
	Candidates = prelude + candidates

	AllowlistTurn   = prelude + allowlist + allowlistTurn
	AllowlistStage  = prelude + allowlist + allowlistStage
	AllowlistSwap   = prelude + allowlist + allowlistSwap
	AllowlistEmails = prelude + allowlist + allowlistEmails

	Restore   = prelude + restore
	Reset     = prelude + reset
	Purge     = prelude + purge
	Snapshot  = prelude + snapshot
	Published = prelude + published
)
