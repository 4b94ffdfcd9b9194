package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Operator is the settings of seatctl: where the deployment's parts are. What
// only some commands need, the gateway, is LoadGateway's.
type Operator struct {
	// StatusURL is where status.json is read by HTTP instead of from the object
	// store. HOLDFAST_STATUS_URL, default "".
	StatusURL string `env:"STATUS_URL"`
	// MetricsURLs are where the processes give their metrics: the /metrics of each
	// one's admin address, with commas between. HOLDFAST_METRICS_URLS, default "".
	MetricsURLs []string `env:"METRICS_URLS"`
	// CodePattern is what a candidate code matches as a whole, the same as the API's:
	// a code that the loader took and the API refused would be nobody's.
	// HOLDFAST_CODE_PATTERN, default ^[A-Z0-9-]{4,32}$.
	CodePattern string `env:"CODE_PATTERN" envDefault:"^[A-Z0-9-]{4,32}$"`

	Process
	Redis
	Drivers
	Published
}

// LoadOperator reads the operator's settings, as LoadAPI does.
func LoadOperator(getenv func(string) string) (Operator, error) {
	var c Operator
	p := read(&c, getenv)
	p.pattern("CODE_PATTERN", c.CodePattern)
	p.process(c.Process)
	p.drivers(c.Drivers)
	p.redis(c.Redis)
	p.published(c.Published)
	p.region(c.Drivers, c.Objects == "s3")
	if c.StatusURL != "" {
		p.url("STATUS_URL", c.StatusURL)
	}
	for i, u := range c.MetricsURLs {
		c.MetricsURLs[i] = strings.TrimSpace(u)
		p.url("METRICS_URLS", c.MetricsURLs[i])
	}
	return c, p.err()
}

// LoadGateway reads the gateway's settings alone, as LoadAPI does.
func LoadGateway(getenv func(string) string) (Gateway, error) {
	var c Gateway
	p := read(&c, getenv)
	c.GatewayURL = strings.TrimRight(c.GatewayURL, "/")
	p.url("GATEWAY_URL", c.GatewayURL)
	p.atLeast("GATEWAY_SLOTS", c.GatewaySlots, 1)
	return c, p.err()
}

// EnvFile is the name of the file that tells seatctl of a deployment on this
// machine.
const EnvFile = "holdfast.env"

// FormatEnv writes variables as ReadEnv reads them: NAME=value, one a line,
// sorted, the value as it is.
func FormatEnv(env map[string]string) []byte {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "%s=%s\n", name, env[name])
	}
	return []byte(b.String())
}

// ReadEnv reads such a file and answers as os.Getenv does, from the file alone:
// a variable of the caller's own environment is not mixed in.
func ReadEnv(path string) (getenv func(string) string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("%s, line %d: want NAME=value", path, number) // what stands there may be half a secret
		}
		env[name] = value
	}
	return func(name string) string { return env[name] }, nil
}
