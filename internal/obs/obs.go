// Package obs is what an operator sees of a process: one wide log line per
// request or job, a metrics registry, and the admin listener. Everything is
// made here and passed on; nothing is global. A log that cannot be written is
// dropped rather than answered for. Log times are the wall clock's.
package obs

import (
	"io"
	"log/slog"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewLogger writes JSON lines to w, from that level on. Given a *slog.LevelVar
// the level can be changed while the process runs; see LevelHandler. A duration is
// written in milliseconds, under its name with _ms behind it. Mail addresses are cut
// out of every text, since other people's errors quote them.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: fit}))
}

// mailAddress is anything that may be one; better a word too many is cut than one
// too few.
var mailAddress = regexp.MustCompile(`[^\s<>"'(),;:]+@[^\s<>"'(),;:]+`)

// fit makes one field fit for the log.
func fit(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.Float64(a.Key+"_ms", float64(a.Value.Duration().Microseconds())/1000)
	case slog.KindString:
		return slog.String(a.Key, withoutAddresses(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			return slog.String(a.Key, withoutAddresses(err.Error()))
		}
	}
	return a
}

func withoutAddresses(s string) string {
	if strings.IndexByte(s, '@') < 0 {
		return s
	}
	return mailAddress.ReplaceAllString(s, "[e-mail]")
}

// NewRegistry makes a registry with the Go runtime's and the process's own
// metrics and holdfast_build_info. One for each service, also when several run
// in one process.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(),
	)
	return reg
}

// Version is what was built: the module's version as the Go command stamped it,
// which for a commit without a tag has its time and the start of its hash, and ends
// in +dirty where the source was changed; "devel" where the build recorded none.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}

// buildInfo is 1, with what was built as labels; "unknown" where the build
// recorded nothing.
func buildInfo() prometheus.Collector {
	goVersion, revision := "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		goVersion = info.GoVersion
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "holdfast_build_info",
		Help:        "1, labelled with the version, the revision and the Go version of the build.",
		ConstLabels: prometheus.Labels{"version": Version(), "revision": revision, "go": goVersion},
	}, func() float64 { return 1 })
}
