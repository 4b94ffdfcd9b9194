package mockgateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"time"
)

// Notifications say where and how completed payments are notified. Each
// notification keeps those under which it was made.
type Notifications struct {
	// URL is the webhook. "" notifies nobody: what completes then is never
	// notified.
	URL string `json:"url,omitempty"`
	// TopicARN also says the region. Default DefaultTopic.
	TopicARN string `json:"topic_arn,omitempty"`
	// SignatureVersion is "1" (the default, as on the real topic) or "2".
	SignatureVersion string `json:"signature_version,omitempty"`
	// Subject is left out if it is "", as on the real topic.
	Subject string `json:"subject,omitempty"`
	// Retries follow an attempt that had no answer, or one from 500 on. 0 is the
	// service's 3; negative is none.
	Retries int `json:"retries,omitempty"`
	// RetryMS is the time between attempts in milliseconds. 0 is the service's
	// 20 s.
	RetryMS int64 `json:"retry_ms,omitempty"`
	// TimeoutMS is how long the webhook may take, in milliseconds of real time. 0
	// is the service's 15 s.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// DefaultTopic is the topic unless the settings name another.
const DefaultTopic = "arn:aws:sns:ap-southeast-1:123456789012:bpt_mock"

var topicForm = regexp.MustCompile(`^arn:aws:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}$`)

func (n Notifications) check() error {
	if n.URL != "" {
		u, err := url.Parse(n.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return errors.New("notifications: url: want http(s)://host")
		}
	}
	switch {
	case n.TopicARN != "" && !topicForm.MatchString(n.TopicARN):
		return fmt.Errorf("notifications: topic_arn: want the form %s", DefaultTopic)
	case n.SignatureVersion != "" && n.SignatureVersion != "1" && n.SignatureVersion != "2":
		return errors.New("notifications: signature_version: want 1 or 2")
	case n.RetryMS < 0 || n.RetryMS > maxDelay.Milliseconds():
		return fmt.Errorf("notifications: retry_ms: want 0 to %d", maxDelay.Milliseconds())
	case n.TimeoutMS < 0 || n.TimeoutMS > maxLatency.Milliseconds():
		return fmt.Errorf("notifications: timeout_ms: want 0 to %d", maxLatency.Milliseconds())
	}
	return nil
}

func (n Notifications) attempts() int {
	if n.Retries < 0 {
		return 1
	}
	return 1 + cmp.Or(n.Retries, 3)
}

func (n Notifications) retryAfter() time.Duration {
	return time.Duration(cmp.Or(n.RetryMS, 20_000)) * time.Millisecond
}

func (n Notifications) timeout() time.Duration {
	return time.Duration(cmp.Or(n.TimeoutMS, 15_000)) * time.Millisecond
}

// notification tells the webhook of one transaction. Its payment keeps it.
type notification struct {
	ID       string        `json:"id"`
	Seq      int64         `json:"seq"` // order of making
	Message  string        `json:"message"`
	MadeAt   time.Time     `json:"made_at"`
	DueAt    time.Time     `json:"due_at"` // of the next attempt
	To       Notifications `json:"to"`
	Copies   int           `json:"copies,omitempty"`    // deliveries still to be made
	HeldBack bool          `json:"held_back,omitempty"` // until it is overtaken, at most until DueAt
	Never    bool          `json:"never,omitempty"`
	Done     bool          `json:"done,omitempty"`
	Tries    int           `json:"tries,omitempty"` // of the present delivery
	Attempts []Attempt     `json:"attempts,omitempty"`
}

// Attempt is one post to the webhook.
type Attempt struct {
	At     time.Time `json:"at"`
	Status int       `json:"status,omitempty"` // HTTP; 0 if there was no answer
	Error  string    `json:"error,omitempty"`
}

// gate opens for a notification that is held back.
type gate struct {
	of   *payment
	open chan struct{}
}

// transactionMessage is the text of a notification. It names no payment id.
type transactionMessage struct {
	DateTime     string `json:"dateTime"`
	DebitMSISDN  string `json:"debitMSISDN"`
	Organization string `json:"creditOrganizationName"`
	ShortCode    string `json:"creditShortCode"`
	TrxID        string `json:"trxID"`
	Status       string `json:"transactionStatus"`
	Type         string `json:"transactionType"`
	Amount       string `json:"amount"`
	Currency     string `json:"currency"`
	Reference    string `json:"transactionReference"`
	Invoice      string `json:"merchantInvoiceNumber"`
}

// notify makes the notification of a transaction, if anybody is to be told; the
// lock is held, and the caller saves the payment.
func (g *Gateway) notify(p *payment, t *transaction, now time.Time) {
	to := g.settings.Notifications
	if to.URL == "" {
		return
	}
	to.TopicARN = cmp.Or(to.TopicARN, DefaultTopic)
	to.SignatureVersion = cmp.Or(to.SignatureVersion, "1")
	said := p.told(placeNotification, *t)
	text, err := json.Marshal(transactionMessage{
		DateTime:     t.At.In(time.FixedZone("", 6*60*60)).Format("20060102150405"),
		DebitMSISDN:  "88" + payerMSISDN,
		Organization: "Mock merchant",
		ShortCode:    shortCode,
		TrxID:        said.TrxID,
		Status:       "Completed",
		Type:         "10002294", // paid through the API
		Amount:       said.Amount,
		Currency:     said.Currency,
		Reference:    p.Reference,
		Invoice:      said.Invoice,
	})
	if err != nil { // no value here can fail
		return
	}
	g.notes++
	n := &notification{ID: newMessageID(), Seq: g.notes, Message: string(text), MadeAt: now, DueAt: now, To: to, Copies: 1}
	t.Note = n
	if p.take(placeNotification, FaultNotificationNever) != nil {
		n.Never, n.Done = true, true
		return
	}
	if p.take(placeNotification, FaultNotificationDoubled) != nil {
		n.Copies = 2
	}
	if f := p.take(placeNotification, FaultNotificationLate); f != nil {
		n.DueAt = now.Add(f.delay())
	}
	if f := p.holdsBack(); f != nil {
		n.HeldBack, n.DueAt = true, n.DueAt.Add(f.delay())
	}
	g.dispatch(p, n)
}

// holdsBack finds the fault that is counted only once it has had its effect,
// which needs another notification.
func (p *payment) holdsBack() *Fault {
	for _, f := range p.Faults {
		if f.Name == FaultNotificationOutOfOrder && f.actsAt(placeNotification) {
			return f
		}
	}
	return nil
}

// overtake lets those go that were made before n and have waited for one made
// after them; the lock is held.
func (g *Gateway) overtake(n *notification, now time.Time) {
	for held, gate := range g.held {
		if held.Seq >= n.Seq {
			continue
		}
		gate.of.take(placeNotification, FaultNotificationOutOfOrder)
		held.HeldBack, held.DueAt = false, now
		g.save(gate.of)
		delete(g.held, held)
		close(gate.open)
	}
}

// dispatch sends a notification, beginning when it is due; the lock is held. The
// goroutine ends when it is delivered or given up, or with Close.
func (g *Gateway) dispatch(p *payment, n *notification) {
	if n.Done {
		return
	}
	var open chan struct{} // nil never opens
	if n.HeldBack {
		open = make(chan struct{})
		g.held[n] = &gate{of: p, open: open}
	}
	g.work.Go(func() {
		for g.untilDue(n, open) {
			g.mu.Lock()
			saved := p.saved
			g.mu.Unlock()
			// What is not on disk may not have happened after a restart.
			if saved.wait() != nil || !g.deliver(p, n) {
				return
			}
		}
	})
}

// untilDue waits for the next attempt; it tells whether there is one.
func (g *Gateway) untilDue(n *notification, open chan struct{}) bool {
	for {
		g.mu.Lock()
		due := n.DueAt
		ready := !g.opts.Now().Before(due)
		if ready {
			n.HeldBack = false
			delete(g.held, n)
		}
		g.mu.Unlock()
		if ready {
			return g.ending.Err() == nil
		}
		select {
		case <-g.opts.At(due):
		case <-open:
			open = nil
		case <-g.ending.Done():
			return false
		}
	}
}

// deliver makes one attempt and tells whether another is to follow.
func (g *Gateway) deliver(p *payment, n *notification) bool {
	select {
	case g.sending <- struct{}{}:
	case <-g.ending.Done():
		return false
	}
	a := g.post(g.ending, n.To, envelope{
		Type: typeNotification, MessageID: n.ID, TopicARN: n.To.TopicARN, Subject: n.To.Subject,
		Message: n.Message, Timestamp: snsTime(n.MadeAt),
	})
	<-g.sending
	if g.ending.Err() != nil {
		return false // whether it arrived is not known: it is sent again
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.opts.Now()
	n.Attempts = append(n.Attempts, a)
	n.Tries++
	switch failed := a.Status == 0 || a.Status >= http.StatusInternalServerError; {
	case failed && n.Tries < n.To.attempts():
		n.DueAt = now.Add(n.To.retryAfter())
	case !failed && n.Copies > 1:
		n.Copies, n.Tries = n.Copies-1, 0
	default:
		n.Done = true
	}
	g.save(p)
	g.overtake(n, now)
	return !n.Done
}

// Subscribe sends a SubscriptionConfirmation to the webhook, once, and tells
// what came of it. The error says that there is none to send it to.
func (g *Gateway) Subscribe(ctx context.Context) (Attempt, error) {
	to := g.Settings().Notifications
	if to.URL == "" {
		return Attempt{}, errors.New("subscribe: the settings name no webhook")
	}
	topic := cmp.Or(to.TopicARN, DefaultTopic)
	to.SignatureVersion = cmp.Or(to.SignatureVersion, "1")
	token := randomText("0123456789abcdef", 128)
	return g.post(ctx, to, envelope{
		Type: typeSubscription, MessageID: newMessageID(), TopicARN: topic, Token: token,
		Message:      "You have chosen to subscribe to the topic " + topic + ".\nTo confirm the subscription, visit the SubscribeURL included in this message.",
		SubscribeURL: snsURL(topic) + "?Action=ConfirmSubscription&TopicArn=" + url.QueryEscape(topic) + "&Token=" + token,
		Timestamp:    snsTime(g.opts.Now()),
	}), nil
}

// post signs and posts a message, once.
func (g *Gateway) post(ctx context.Context, to Notifications, e envelope) Attempt {
	a := Attempt{At: g.opts.Now()}
	status, err := g.tryPost(ctx, to, e)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	a.Status = status
	return a
}

func (g *Gateway) tryPost(ctx context.Context, to Notifications, e envelope) (int, error) {
	s, err := g.signature()
	if err != nil {
		return 0, err
	}
	subscription := e.TopicARN + ":9d8c7b6a-0000-4000-8000-000000000000"
	if e.Type == typeNotification {
		e.UnsubscribeURL = snsURL(e.TopicARN) + "?Action=Unsubscribe&SubscriptionArn=" + url.QueryEscape(subscription)
	}
	if err := s.sign(&e, to.SignatureVersion); err != nil {
		return 0, err
	}
	body, err := json.Marshal(e)
	if err != nil {
		return 0, fmt.Errorf("encode notification: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, to.timeout())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("post notification: %w", err)
	}
	h := req.Header
	h.Set("Content-Type", "text/plain; charset=UTF-8")
	h.Set("User-Agent", "Amazon Simple Notification Service Agent")
	h.Set("x-amz-sns-message-type", e.Type)
	h.Set("x-amz-sns-message-id", e.MessageID)
	h.Set("x-amz-sns-topic-arn", e.TopicARN)
	if e.Type == typeNotification {
		h.Set("x-amz-sns-subscription-arn", subscription)
	}
	resp, err := g.webhook.Do(req)
	if err != nil {
		return 0, fmt.Errorf("post notification: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody)) // so that the connection can be used again
	return resp.StatusCode, nil
}

// maxSending is how many notifications are on their way at once.
const maxSending = 32

func newWebhookClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: maxSending, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func snsTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
