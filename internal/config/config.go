// Package config is the settings of each process: one documented struct, read
// once at the start from the environment, checked as a whole. Everything that
// is wrong is told at once, by the name of the variable, and a process that
// was told anything does not start. How much memory a process may use is told to
// the Go runtime, by GOMEMLIMIT, and not here.
//
// A variable that is set but empty counts as not set. Any variable of type
// Secret can be given as a file instead: HOLDFAST_REDIS_PASSWORD_FILE names a
// file whose content, without the last line's end, is the value. Setting both
// is an error. Nothing here reads a clock.
package config

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"
)

// API is the settings of the API process, which has the reconciler inside.
type API struct {
	// Addr is where requests are served, host:port. HOLDFAST_ADDR, default
	// 127.0.0.1:8080.
	Addr string `env:"ADDR" envDefault:"127.0.0.1:8080"`
	// AdminAddr is where metrics, readiness and profiles are served, host:port;
	// the host is loopback, private, or a name. "" is not served.
	// HOLDFAST_ADMIN_ADDR, "off" for none, default 127.0.0.1:9090.
	AdminAddr string `env:"ADMIN_ADDR" envDefault:"127.0.0.1:9090"`
	// AdminToken is what the back office shows, as a bearer token, to replace the
	// allowlist through the admin listener; at least 32 visible ASCII characters, best
	// random ones. "" turns that route off. HOLDFAST_ADMIN_TOKEN, default "".
	AdminToken Secret `env:"ADMIN_TOKEN"`
	// PublicURL is where browsers reach the site, the base of callback and
	// result links: scheme and host, no slash at the end. HOLDFAST_PUBLIC_URL,
	// required.
	PublicURL string `env:"PUBLIC_URL,required"`
	// SealKey is the fleet's key for booking tokens: 32 bytes as hex, the same
	// on every server. HOLDFAST_SEAL_KEY, required.
	SealKey Secret `env:"SEAL_KEY,required"`
	// TrustedHops is how many proxies of ours stand before this process, each of which
	// adds the address it was called from to X-Forwarded-For: 1 behind a balancer, 2
	// behind a CDN and a balancer. The log names clients by it. HOLDFAST_TRUSTED_HOPS,
	// 0 to 10, default 0: the connection's own address.
	TrustedHops int `env:"TRUSTED_HOPS" envDefault:"0"`
	// Linger is how long a process that was told to end still accepts connections,
	// with /health failing: the balancer must have seen it fail, which is its
	// interval times its threshold. HOLDFAST_LINGER, default 5s; 0s for none.
	Linger time.Duration `env:"LINGER" envDefault:"5s"`
	// CodePattern is the expression that a normalised candidate code matches as
	// a whole; ASCII. HOLDFAST_CODE_PATTERN, default ^[A-Z0-9-]{4,32}$.
	CodePattern string `env:"CODE_PATTERN" envDefault:"^[A-Z0-9-]{4,32}$"`
	// Pages has this process serve page, result page and status.json itself; false
	// where a CDN does. HOLDFAST_PAGES, default true.
	Pages bool `env:"PAGES" envDefault:"true"`

	Process
	Redis
	Gateway
	Budgets
	Reconciler
	Drivers
	Published
	Mail
	Money
}

// Worker is the settings of the queue consumer. It has no Redis and no gateway.
type Worker struct {
	// AdminAddr is where metrics, readiness and profiles are served, as for the
	// API. HOLDFAST_ADMIN_ADDR, "off" for none, default 127.0.0.1:9091, so that
	// both processes can run on one machine.
	AdminAddr string `env:"ADMIN_ADDR" envDefault:"127.0.0.1:9091"`

	Process
	Drivers
}

// Process is what every process has.
type Process struct {
	// Data is the folder of what is kept on this machine: the local drivers'
	// database, queue, objects and outbox. HOLDFAST_DATA, default data.
	Data string `env:"DATA" envDefault:"data"`
	// LogLevel is the least level that is logged: debug, info, warn or error.
	// HOLDFAST_LOG_LEVEL, default info.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"info"`
	// Drain is how long a process that was told to end waits for calls in
	// flight; longer than the longest of them, which is an execute call or, with
	// 34 s, a refund, and shorter than the unit's stop time-out. HOLDFAST_DRAIN,
	// default 35s.
	Drain time.Duration `env:"DRAIN" envDefault:"35s"`
}

// Redis is how the seats are reached.
type Redis struct {
	// RedisAddr is the primary, host:port. HOLDFAST_REDIS_ADDR, default
	// 127.0.0.1:6379.
	RedisAddr string `env:"REDIS_ADDR" envDefault:"127.0.0.1:6379"`
	// RedisUsername is this process's Redis user; "" is the default user.
	// HOLDFAST_REDIS_USERNAME, default "".
	RedisUsername string `env:"REDIS_USERNAME"`
	// RedisPassword is that user's password; "" sends none.
	// HOLDFAST_REDIS_PASSWORD, default "".
	RedisPassword Secret `env:"REDIS_PASSWORD"`
	// RedisTLS asks for TLS with the system's roots. HOLDFAST_REDIS_TLS, default
	// false.
	RedisTLS bool `env:"REDIS_TLS" envDefault:"false"`
	// RedisPool is the most connections this process opens.
	// HOLDFAST_REDIS_POOL, default 300.
	RedisPool int `env:"REDIS_POOL" envDefault:"300"`
	// KeyPrefix stands before every key but token:*. It holds a hash tag, so
	// that all keys of a sale live in one slot. HOLDFAST_KEY_PREFIX, default
	// {sale}:.
	KeyPrefix string `env:"KEY_PREFIX" envDefault:"{sale}:"`
	// Acks is how many replicas must acknowledge a change before it counts.
	// HOLDFAST_ACKS: auto, 0, 1 or 2; default auto, by the replicas attached.
	Acks Acks `env:"ACKS" envDefault:"auto"`
}

// Gateway is the payment gateway and this merchant's account there.
type Gateway struct {
	// GatewayURL is the base of its HTTP API, no slash at the end.
	// HOLDFAST_GATEWAY_URL, required.
	GatewayURL string `env:"GATEWAY_URL,required"`
	// GatewayAppKey identifies the application. HOLDFAST_GATEWAY_APP_KEY,
	// required.
	GatewayAppKey Secret `env:"GATEWAY_APP_KEY,required"`
	// GatewayAppSecret belongs to the key. HOLDFAST_GATEWAY_APP_SECRET, required.
	GatewayAppSecret Secret `env:"GATEWAY_APP_SECRET,required"`
	// GatewayUsername is the merchant's account. HOLDFAST_GATEWAY_USERNAME,
	// required.
	GatewayUsername Secret `env:"GATEWAY_USERNAME,required"`
	// GatewayPassword belongs to the account. HOLDFAST_GATEWAY_PASSWORD,
	// required.
	GatewayPassword Secret `env:"GATEWAY_PASSWORD,required"`
	// GatewaySlots is how many payments this process creates at a time; beyond
	// it admissions wait. HOLDFAST_GATEWAY_SLOTS, default 1000.
	GatewaySlots int `env:"GATEWAY_SLOTS" envDefault:"1000"`
}

// Budgets bound a booking request and its parts: Redis, create and enqueue add
// up to less than the whole.
type Budgets struct {
	// RequestBudget is the whole of a booking request, and how long a browser
	// that comes back from the gateway waits. Less than 15s, after which another
	// request may take the attempt over. HOLDFAST_REQUEST_BUDGET, default 8s.
	RequestBudget time.Duration `env:"REQUEST_BUDGET" envDefault:"8s"`
	// RedisBudget is for admission and its acknowledgement, for which replicas have
	// 200 ms; at least 500ms. HOLDFAST_REDIS_BUDGET, default 1s.
	RedisBudget time.Duration `env:"REDIS_BUDGET" envDefault:"1s"`
	// CreateBudget is for the gateway to create the payment.
	// HOLDFAST_CREATE_BUDGET, default 5s.
	CreateBudget time.Duration `env:"CREATE_BUDGET" envDefault:"5s"`
	// EnqueueBudget is for the queue to confirm the record.
	// HOLDFAST_ENQUEUE_BUDGET, default 1s.
	EnqueueBudget time.Duration `env:"ENQUEUE_BUDGET" envDefault:"1s"`
	// ExecuteTimeout is the longest that one execute call may take; longer than the
	// gateway's own limit, 50s at most. HOLDFAST_EXECUTE_TIMEOUT, default 30s.
	ExecuteTimeout time.Duration `env:"EXECUTE_TIMEOUT" envDefault:"30s"`
}

// Reconciler is how the sweeps run.
type Reconciler struct {
	// QueryRate is how many status queries a second the fleet may send to the
	// gateway. HOLDFAST_QUERY_RATE, default 200.
	QueryRate int `env:"QUERY_RATE" envDefault:"200"`
	// ReconcileWidth is how many rows are worked on at a time.
	// HOLDFAST_RECONCILE_WIDTH, default 64.
	ReconcileWidth int `env:"RECONCILE_WIDTH" envDefault:"64"`
	// ReconcileEvery is the time from one sweep's start to the next.
	// HOLDFAST_RECONCILE_EVERY, default 20s.
	ReconcileEvery time.Duration `env:"RECONCILE_EVERY" envDefault:"20s"`
}

// Drivers name what stands behind the ports that both processes share, and how
// AWS is reached where one of it does.
type Drivers struct {
	// Store holds the booking records. HOLDFAST_STORE: sqlite or dynamodb; default
	// sqlite.
	Store string `env:"STORE" envDefault:"sqlite"`
	// StoreTable is the table; dynamodb needs it. HOLDFAST_STORE_TABLE, default "".
	StoreTable string `env:"STORE_TABLE"`
	// Queue carries records to the worker. HOLDFAST_QUEUE: sqlite or sqs; default
	// sqlite.
	Queue string `env:"QUEUE" envDefault:"sqlite"`
	// QueueName names the queue, NAME.fifo, and that of its dead letters,
	// NAME-dead.fifo; sqs needs it. HOLDFAST_QUEUE_NAME, default "".
	QueueName string `env:"QUEUE_NAME"`
	// AWSRegion is the region of everything that is used there; every driver of AWS
	// needs it. HOLDFAST_AWS_REGION, default "".
	AWSRegion string `env:"AWS_REGION"`
	// AWSEndpoint is the base URL of an emulator that stands in for all of AWS; ""
	// is AWS. HOLDFAST_AWS_ENDPOINT, default "".
	AWSEndpoint string `env:"AWS_ENDPOINT"`
}

// Published is where page and status.json lie.
type Published struct {
	// Objects names the driver of the published page and status.json.
	// HOLDFAST_OBJECTS: sqlite or s3; default sqlite.
	Objects string `env:"OBJECTS" envDefault:"sqlite"`
	// ObjectsBucket is the bucket; s3 needs it. HOLDFAST_OBJECTS_BUCKET, default "".
	ObjectsBucket string `env:"OBJECTS_BUCKET"`
}

// Mail is how confirmations are sent.
type Mail struct {
	// MailDriver sends. HOLDFAST_MAIL: outbox, which writes files into the data
	// folder, smtp or ses; default outbox.
	MailDriver string `env:"MAIL" envDefault:"outbox"`
	// MailFrom is the sender's address, with or without a name.
	// HOLDFAST_MAIL_FROM, default Holdfast <no-reply@localhost>.
	MailFrom string `env:"MAIL_FROM" envDefault:"Holdfast <no-reply@localhost>"`
	// SMTPHost is the mail server; smtp needs it. HOLDFAST_SMTP_HOST, default "".
	SMTPHost string `env:"SMTP_HOST"`
	// SMTPPort is its port; 0 is 587, or 465 with implicit encryption.
	// HOLDFAST_SMTP_PORT, default 0.
	SMTPPort int `env:"SMTP_PORT" envDefault:"0"`
	// SMTPEncryption protects the connection. HOLDFAST_SMTP_ENCRYPTION: starttls,
	// implicit, plain (to this machine only) or plain-anywhere (a mail catcher's);
	// default starttls.
	SMTPEncryption string `env:"SMTP_ENCRYPTION" envDefault:"starttls"`
	// SMTPUsername logs in; "" does not. HOLDFAST_SMTP_USERNAME, default "".
	SMTPUsername string `env:"SMTP_USERNAME"`
	// SMTPPassword belongs to the user. HOLDFAST_SMTP_PASSWORD, default "".
	SMTPPassword Secret `env:"SMTP_PASSWORD"`
	// SMTPHello is the name that this machine gives itself there; "" is its address.
	// HOLDFAST_SMTP_HELLO, default "".
	SMTPHello string `env:"SMTP_HELLO"`
	// SESConfigurationSet is the set whose events tell of bounces; "" names none.
	// HOLDFAST_SES_CONFIGURATION_SET, default "".
	SESConfigurationSet string `env:"SES_CONFIGURATION_SET"`
	// SESRate is how many mails a second this process hands over at most: its share of
	// the account's rate, beyond which SES refuses; 0 is no limit. HOLDFAST_SES_RATE,
	// default 0.
	SESRate float64 `env:"SES_RATE" envDefault:"0"`
}

// Money is what is done about money that is no plain payment of its seat.
type Money struct {
	// NotifyTopic is the ARN of the topic by which the gateway notifies of payments;
	// "" serves no webhook. HOLDFAST_NOTIFY_TOPIC, default "".
	NotifyTopic string `env:"NOTIFY_TOPIC"`
	// RefundAuto sends refunds by itself; otherwise an operator does.
	// HOLDFAST_REFUND_AUTO, default false.
	RefundAuto bool `env:"REFUND_AUTO" envDefault:"false"`
	// RefundRate is how many refunds a second this process begins, each of them at
	// most two calls of the gateway, which has a limit of its own for the account.
	// HOLDFAST_REFUND_RATE, default 5.
	RefundRate int `env:"REFUND_RATE" envDefault:"5"`
}

// SealKeyBytes is the sealing key as bytes; nil in an API that LoadAPI did not
// make.
func (c API) SealKeyBytes() []byte {
	key, err := hex.DecodeString(c.SealKey.Reveal())
	if err != nil {
		return nil
	}
	return key
}

// Acks is how many replicas must acknowledge a change.
type Acks int

// AcksAuto means: by the number of replicas attached, at least one. AcksNone is
// for the local profile and for an engine that logs every write durably.
const (
	AcksAuto Acks = -1
	AcksNone Acks = 0
)

// UnmarshalText reads auto, 0, 1 or 2.
func (a *Acks) UnmarshalText(text []byte) error {
	switch s := string(text); s {
	case "auto":
		*a = AcksAuto
	case "0", "1", "2":
		*a = Acks(s[0] - '0')
	default:
		return fmt.Errorf("%q: want auto, 0, 1 or 2", s)
	}
	return nil
}
