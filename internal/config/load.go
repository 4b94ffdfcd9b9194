package config

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// prefix stands before the name of every variable.
const prefix = "HOLDFAST_"

const (
	// leastRedisBudget leaves time beside the 200 ms that replicas have to acknowledge.
	leastRedisBudget = 500 * time.Millisecond
	// takeOver is the age at which a lost request's attempt is taken over.
	takeOver = 15 * time.Second
)

// sealKeySize is the length of the sealing key in bytes.
const sealKeySize = 32

// LoadAPI reads the API's settings. getenv answers "" for what is not set, as
// os.Getenv does. The error joins everything that is wrong, one line each.
func LoadAPI(getenv func(string) string) (API, error) {
	var c API
	p := read(&c, getenv)
	c.PublicURL, c.GatewayURL = strings.TrimRight(c.PublicURL, "/"), strings.TrimRight(c.GatewayURL, "/")

	p.address("ADDR", c.Addr)
	c.AdminAddr = p.admin(c.AdminAddr)
	p.token("ADMIN_TOKEN", c.AdminToken)
	if u := p.url("PUBLIC_URL", c.PublicURL); u != nil && u.Path != "" {
		p.bad("PUBLIC_URL", "%q: want scheme and host only", c.PublicURL)
	}
	if len(c.SealKeyBytes()) != sealKeySize {
		p.bad("SEAL_KEY", "want %d bytes as %d hex digits", sealKeySize, 2*sealKeySize)
	}
	p.pattern("CODE_PATTERN", c.CodePattern)
	if c.TrustedHops < 0 || c.TrustedHops > 10 {
		p.bad("TRUSTED_HOPS", "%d: want 0 to 10", c.TrustedHops)
	}
	if c.Linger < 0 {
		p.bad("LINGER", "%s: want 0s or more", c.Linger)
	}
	p.process(c.Process)
	p.drivers(c.Drivers)
	p.published(c.Published)
	p.redis(c.Redis)
	p.url("GATEWAY_URL", c.GatewayURL)
	p.atLeast("GATEWAY_SLOTS", c.GatewaySlots, 1)
	p.budgets(c.Budgets, c.Drain)
	p.atLeast("QUERY_RATE", c.QueryRate, 1)
	p.atLeast("RECONCILE_WIDTH", c.ReconcileWidth, 1)
	p.positive("RECONCILE_EVERY", c.ReconcileEvery)
	p.oneOf("MAIL", c.MailDriver, "outbox", "smtp", "ses")
	p.smtp(c.Mail)
	p.region(c.Drivers, c.Objects == "s3", c.MailDriver == "ses")
	p.atLeast("REFUND_RATE", c.RefundRate, 1)
	if t := c.NotifyTopic; t != "" && !topicARN.MatchString(t) {
		p.bad("NOTIFY_TOPIC", "%q: want arn:aws:sns:<region>:<account>:<name>", t)
	}
	if _, err := mail.ParseAddress(c.MailFrom); err != nil {
		p.bad("MAIL_FROM", "%q: %w", c.MailFrom, err)
	}
	return c, p.err()
}

// LoadWorker reads the worker's settings, as LoadAPI does.
func LoadWorker(getenv func(string) string) (Worker, error) {
	var c Worker
	p := read(&c, getenv)
	c.AdminAddr = p.admin(c.AdminAddr)
	p.process(c.Process)
	p.drivers(c.Drivers)
	p.region(c.Drivers)
	return c, p.err()
}

// queueName leaves room for -dead.fifo in the 80 characters that SQS takes.
var queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,70}$`)

// topicARN is the shape; the webhook's own check is stricter.
var topicARN = regexp.MustCompile(`^arn:aws:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$`)

func (p *problems) smtp(c Mail) {
	if c.MailDriver != "smtp" {
		return
	}
	p.neededBy("HOLDFAST_MAIL=smtp", true, "SMTP_HOST", c.SMTPHost)
	if c.SMTPPort < 0 || c.SMTPPort > 65535 {
		p.bad("SMTP_PORT", "%d: want 0 to 65535", c.SMTPPort)
	}
	p.oneOf("SMTP_ENCRYPTION", c.SMTPEncryption, "starttls", "implicit", "plain", "plain-anywhere")
}

// read fills a config struct and notes what could not be read.
func read(into any, getenv func(string) string) *problems {
	p := &problems{told: map[string]bool{}}
	environment := map[string]string{} // not nil, which would mean the real one
	variables := map[string]string{}   // by field name, for the parser's errors
	for _, f := range fields(reflect.TypeOf(into).Elem()) {
		name := f.variable
		variables[f.name] = name
		value := getenv(prefix + name)
		if f.secret {
			value = p.orFile(name, value, getenv(prefix+name+"_FILE"))
		}
		if value != "" {
			environment[prefix+name] = value
		}
	}
	err := env.ParseWithOptions(into, env.Options{Environment: environment, Prefix: prefix})
	for _, err := range split(err) {
		var parse env.ParseError
		var missing env.VarIsNotSetError
		switch {
		case errors.As(err, &missing):
			p.bad(strings.TrimPrefix(missing.Key, prefix), "required")
		case errors.As(err, &parse):
			p.bad(variables[parse.Name], "%w", parse.Err)
		default:
			p.errs = append(p.errs, err)
		}
	}
	return p
}

func split(err error) []error {
	var all env.AggregateError
	if errors.As(err, &all) {
		return all.Errors
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

// Variables are the names of all variables that the process of these settings reads,
// without those of files.
func Variables[Settings API | Worker | Operator | Gateway]() []string {
	var names []string
	for _, f := range fields(reflect.TypeFor[Settings]()) {
		names = append(names, prefix+f.variable)
	}
	return names
}

type field struct {
	name, variable string
	secret         bool
}

// fields lists the settings of a config struct and of the groups it embeds.
func fields(t reflect.Type) []field {
	var all []field
	for f := range t.Fields() {
		if f.Anonymous {
			all = append(all, fields(f.Type)...)
			continue
		}
		variable, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		all = append(all, field{f.Name, variable, f.Type == reflect.TypeFor[Secret]()})
	}
	return all
}

// problems collects what is wrong, the first thing for each variable: a value
// that could not be read is not checked as well.
type problems struct {
	errs []error
	told map[string]bool
}

func (p *problems) err() error { return errors.Join(p.errs...) }

func (p *problems) bad(variable, format string, args ...any) {
	if p.told[variable] {
		return
	}
	p.told[variable] = true
	p.errs = append(p.errs, fmt.Errorf(prefix+variable+": "+format, args...))
}

// orFile takes a secret from its variable or from the file that another names.
func (p *problems) orFile(variable, value, path string) string {
	switch {
	case path == "":
		return value
	case value != "":
		p.bad(variable, "set both as a value and as %s%s_FILE", prefix, variable)
		return value
	}
	content, err := os.ReadFile(path)
	if err != nil {
		p.bad(variable, "%w", err)
		return ""
	}
	return strings.TrimRight(string(content), "\r\n")
}

// leastToken is what nobody guesses, if it is random.
const leastToken = 32

// token wants what an Authorization header can carry; "" is none.
func (p *problems) token(variable string, s Secret) {
	token := s.Reveal()
	visible := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
	if token != "" && (len(token) < leastToken || !visible) {
		p.bad(variable, "want at least %d visible ASCII characters", leastToken)
	}
}

func (p *problems) pattern(variable, got string) {
	if _, err := regexp.Compile(got); err != nil {
		p.bad(variable, "%w", err)
	}
}

func (p *problems) process(c Process) {
	p.positive("DRAIN", c.Drain)
}

func (p *problems) drivers(c Drivers) {
	p.oneOf("STORE", c.Store, "sqlite", "dynamodb")
	p.neededBy("HOLDFAST_STORE=dynamodb", c.Store == "dynamodb", "STORE_TABLE", c.StoreTable)
	p.oneOf("QUEUE", c.Queue, "sqlite", "sqs")
	p.neededBy("HOLDFAST_QUEUE=sqs", c.Queue == "sqs", "QUEUE_NAME", c.QueueName)
	if c.QueueName != "" && !queueName.MatchString(c.QueueName) {
		p.bad("QUEUE_NAME", "%q: want 1 to 70 letters, digits, - and _; .fifo is added", c.QueueName)
	}
	if c.AWSEndpoint != "" {
		p.url("AWS_ENDPOINT", c.AWSEndpoint)
	}
}

func (p *problems) published(c Published) {
	p.oneOf("OBJECTS", c.Objects, "sqlite", "s3")
	p.neededBy("HOLDFAST_OBJECTS=s3", c.Objects == "s3", "OBJECTS_BUCKET", c.ObjectsBucket)
}

// region wants the region where a driver of AWS is named, among those of all
// processes or the process's own.
func (p *problems) region(c Drivers, own ...bool) {
	used := c.Store == "dynamodb" || c.Queue == "sqs" || slices.Contains(own, true)
	p.neededBy("a driver of AWS", used, "AWS_REGION", c.AWSRegion)
}

func (p *problems) neededBy(what string, used bool, variable, got string) {
	if used && got == "" {
		p.bad(variable, "required with %s", what)
	}
}

func (p *problems) redis(c Redis) {
	p.address("REDIS_ADDR", c.RedisAddr)
	p.atLeast("REDIS_POOL", c.RedisPool, 1)
	// What Redis hashes is between the first { and the next }, if not empty.
	_, rest, _ := strings.Cut(c.KeyPrefix, "{")
	if tag, _, closed := strings.Cut(rest, "}"); !closed || tag == "" {
		p.bad("KEY_PREFIX", "%q: want a hash tag in it, such as {sale}:", c.KeyPrefix)
	}
}

// mostExecute is less than the minute for which `bookings resolve` takes an announced
// call to be in flight.
const mostExecute = 50 * time.Second

func (p *problems) budgets(c Budgets, drain time.Duration) {
	p.positive("REQUEST_BUDGET", c.RequestBudget)
	p.positive("REDIS_BUDGET", c.RedisBudget)
	p.positive("CREATE_BUDGET", c.CreateBudget)
	p.positive("ENQUEUE_BUDGET", c.EnqueueBudget)
	p.positive("EXECUTE_TIMEOUT", c.ExecuteTimeout)
	if c.ExecuteTimeout > mostExecute {
		p.bad("EXECUTE_TIMEOUT", "%s: want at most %s, or an operator could end an attempt whose call is in flight", c.ExecuteTimeout, mostExecute)
	}
	if p.ok("REDIS_BUDGET") && c.RedisBudget < leastRedisBudget {
		p.bad("REDIS_BUDGET", "%s: want at least %s, more than an acknowledgement takes", c.RedisBudget, leastRedisBudget)
	}
	if p.ok("REQUEST_BUDGET") && c.RequestBudget >= takeOver {
		p.bad("REQUEST_BUDGET", "%s: want less than %s, after which another request takes the attempt over", c.RequestBudget, takeOver)
	}
	if p.ok("REQUEST_BUDGET", "REDIS_BUDGET", "CREATE_BUDGET", "ENQUEUE_BUDGET") {
		if parts := c.RedisBudget + c.CreateBudget + c.EnqueueBudget; parts >= c.RequestBudget {
			p.bad("REQUEST_BUDGET", "%s: want more than the %s of Redis, create and enqueue together", c.RequestBudget, parts)
		}
	}
	if p.ok("DRAIN", "EXECUTE_TIMEOUT", "REQUEST_BUDGET") {
		if longest := max(c.ExecuteTimeout, c.RequestBudget); drain <= longest {
			p.bad("DRAIN", "%s: want more than %s, the longest call in flight", drain, longest)
		}
	}
}

// ok tells whether nothing was wrong with these variables so far.
func (p *problems) ok(variables ...string) bool {
	return !slices.ContainsFunc(variables, func(v string) bool { return p.told[v] })
}

func (p *problems) atLeast(variable string, got, want int) {
	if got < want {
		p.bad(variable, "%d: want at least %d", got, want)
	}
}

func (p *problems) positive(variable string, got time.Duration) {
	if got <= 0 {
		p.bad(variable, "%s: want more than 0", got)
	}
}

func (p *problems) oneOf(variable, got string, want ...string) {
	if !slices.Contains(want, got) {
		p.bad(variable, "%q: want %s", got, strings.Join(want, " or "))
	}
}

// url wants an address of a web server and nothing that a path could not be
// added to.
func (p *problems) url(variable, got string) *url.URL {
	u, err := url.Parse(got)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		p.bad(variable, "want http:// or https://, a host, and no user, query or fragment")
		return nil
	}
	return u
}

// address wants host:port and returns the host.
func (p *problems) address(variable, got string) string {
	host, port, err := net.SplitHostPort(got)
	if err != nil || port == "" {
		p.bad(variable, "%q: want host:port", got)
	}
	return host
}

// admin wants an address that the world cannot reach: everybody who does may
// look inside the process.
func (p *problems) admin(got string) string {
	if got == "off" {
		return ""
	}
	const variable = "ADMIN_ADDR"
	host := p.address(variable, got)
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && !ip.IsLoopback() && !ip.IsPrivate() {
		p.bad(variable, "%q: want a loopback or private address", got)
	}
	return got
}
