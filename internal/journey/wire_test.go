package journey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// The operations of AWS that are made to fail here, as its JSON protocols name them in
// X-Amz-Target.
const (
	opSend    = "AmazonSQS.SendMessage"
	opReceive = "AmazonSQS.ReceiveMessage"
	opPut     = "DynamoDB_20120810.PutItem"
	opUpdate  = "DynamoDB_20120810.UpdateItem"
)

// wire stands between one program and AWS. It can lose the reply to a request that AWS
// has carried out, which the proxies of testenv cannot do for one operation alone, and it
// can keep a request from AWS until its sender is gone. Safe for concurrent use.
type wire struct {
	url     string
	forward *httputil.ReverseProxy

	mu       sync.Mutex
	seen     map[string][]string // bodies by operation
	working  map[string]int      // requests that AWS is at, by operation
	lose     loss
	lost     int
	hold     string        // operation that is kept back
	holding  chan struct{} // a value for each request that is
	receipts []string      // that SQS gave out
}

// loss says which replies are lost: those of an operation whose request contains the
// text, the next few of them.
type loss struct {
	op, containing string
	next           int
}

// always is more replies than a test can lose.
const always = 1 << 30

var errLost = errors.New("the reply is lost")

func newWire(t *testing.T, endpoint string) *wire {
	t.Helper()
	upstream, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	p := &wire{seen: map[string][]string{}, working: map[string]int{}, holding: make(chan struct{}, 64)}
	p.forward = &httputil.ReverseProxy{
		Transport:      transport,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(upstream) },
		ModifyResponse: p.reply,
		// Whatever went wrong, the client sees its connection end without an answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	served := httptest.NewServer(p)
	t.Cleanup(func() { served.CloseClientConnections(); served.Close(); transport.CloseIdleConnections() })
	p.url = served.URL
	return p
}

func (p *wire) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	op := r.Header.Get("X-Amz-Target")
	p.mu.Lock()
	p.seen[op] = append(p.seen[op], string(body))
	hold := op != "" && op == p.hold
	if !hold {
		p.working[op]++
		defer func() { p.mu.Lock(); p.working[op]--; p.mu.Unlock() }()
	}
	p.mu.Unlock()
	if hold {
		p.holding <- struct{}{}
		<-r.Context().Done() // its sender has hung up; AWS never hears of it
		return
	}
	// What AWS was asked for it does, whether or not the sender waits for it.
	r = r.WithContext(context.WithValue(context.WithoutCancel(r.Context()), sentBody{}, string(body)))
	r.Body = io.NopCloser(bytes.NewReader(body))
	// Hidden, since ReverseProxy would notice through it that the sender has hung up.
	p.forward.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
}

// sentBody is the key under which a request's context has its body, for its reply.
type sentBody struct{}

// reply loses a reply, or lets it pass.
func (p *wire) reply(resp *http.Response) error {
	op := resp.Request.Header.Get("X-Amz-Target")
	sent, _ := resp.Request.Context().Value(sentBody{}).(string)
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && op == opReceive {
		var given struct {
			Messages []struct{ ReceiptHandle string }
		}
		if err = json.Unmarshal(body, &given); err == nil {
			for _, m := range given.Messages {
				p.receipts = append(p.receipts, m.ReceiptHandle)
			}
		}
	}
	if err == nil && op == p.lose.op && p.lose.next > 0 && strings.Contains(sent, p.lose.containing) {
		p.lose.next--
		p.lost++
		err = errLost
	}
	return err
}

// loseReplies loses these replies from now on, and no others.
func (p *wire) loseReplies(l loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose, p.lost = l, 0
}

// lostReplies is how many replies were lost since loseReplies.
func (p *wire) lostReplies() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// keepBack keeps the requests of an operation from AWS from now on; "" none.
func (p *wire) keepBack(op string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = op
}

// atWork is how many of the operation's requests AWS has not answered yet, also those
// whose sender is gone.
func (p *wire) atWork(op string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.working[op]
}

// requests are the bodies of the operation's requests that contain the text.
func (p *wire) requests(op, containing string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, body := range p.seen[op] {
		if strings.Contains(body, containing) {
			out = append(out, body)
		}
	}
	return out
}

// lastReceipt is that of the message that SQS gave out last.
func (p *wire) lastReceipt(t *testing.T) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.receipts) == 0 {
		t.Fatal("receipts: got none, want that of the message in hand")
	}
	return p.receipts[len(p.receipts)-1]
}
