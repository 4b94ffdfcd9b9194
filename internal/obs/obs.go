// Package obs is what an operator sees of a process: one wide log line per
// request or job, a metrics registry, and the admin listener. Everything is
// made here and passed on; nothing is global. A log that cannot be written is
// dropped rather than answered for. Log times are the wall clock's.
package obs

import (
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewLogger writes JSON lines to w, from that level on. Given a *slog.LevelVar
// the level can be changed while the process runs; see LevelHandler.
func NewLogger(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
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
