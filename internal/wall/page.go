package wall

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
)

var (
	//go:embed wall.html
	markup string
	//go:embed wall.css
	style string
	//go:embed wall.js
	script string

	// page is the markup with its one style and its one script, unchanged or their
	// hashes would not fit.
	page = strings.NewReplacer("<style></style>", "<style>"+style+"</style>", "<script></script>", "<script>"+script+"</script>").Replace(markup)

	csp = "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

func hash(inline string) string {
	sum := sha256.Sum256([]byte(inline))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func headers(out http.ResponseWriter, contentType string) {
	h := out.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
}

// Page serves the page, which asks for wall.json beside it.
func (*Wall) Page() http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		headers(out, "text/html; charset=utf-8")
		out.Header().Set("Content-Security-Policy", csp)
		_, _ = out.Write([]byte(page)) // the client may have left
	})
}

// Figures serves the View as JSON with 200, however old it is. When nothing was ever
// read it answers 503 {"error","message"} and Retry-After; error is a Trouble.
func (w *Wall) Figures() http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		v, there := w.Look(r.Context())
		headers(out, "application/json; charset=utf-8")
		body := json.NewEncoder(out)
		if there {
			_ = body.Encode(v) // the client may have left
			return
		}
		out.Header().Set("Retry-After", "2")
		out.WriteHeader(http.StatusServiceUnavailable)
		_ = body.Encode(struct {
			Error   string `json:"error"`
			Message string `json:"message"`
		}{v.Trouble, message(v.Trouble)})
	})
}

// message is what an operator reads who has no figures at all.
func message(trouble string) string {
	switch trouble {
	case TroubleLedger:
		return "Redis has no sale: none was applied, or it has lost everything. See docs/runbooks/ledger-unknown.md."
	case TroubleStarting:
		return "The figures are still being read, or this process is ending."
	}
	return "Redis does not answer. See docs/runbooks/ledger-unread.md."
}
