package mockgateway

import (
	"cmp"
	"net/http"
	"strings"
	"time"
)

// account is a merchant's count of token calls, by user name. Grant and refresh
// share it (unconfirmed; the stricter reading).
type account struct {
	party

	Seen         int         `json:"seen,omitempty"` // token calls, for the draws of their faults
	Calls        []time.Time `json:"calls"`
	BlockedUntil time.Time   `json:"blocked_until,omitzero"`
}

// token is an id token or a refresh token and the application it is for.
type token struct {
	AppKey    string    `json:"app_key"`
	User      string    `json:"user"`
	Refresh   bool      `json:"refresh,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Public code gives a refresh token 28 days; it says nothing of whether a new
// grant ends earlier tokens: here it does not.
const refreshTTL = 28 * 24 * time.Hour

// allow counts a token call, or blocks the account. A call while blocked does
// not make the block longer.
func (a *account) allow(now time.Time, limit int) bool {
	if now.Before(a.BlockedUntil) {
		return false
	}
	recent := a.Calls[:0]
	for _, t := range a.Calls {
		if now.Sub(t) < time.Hour {
			recent = append(recent, t)
		}
	}
	a.Calls = recent
	if limit >= 0 && len(recent) >= limit {
		a.BlockedUntil = now.Add(time.Hour)
		return false
	}
	a.Calls = append(a.Calls, now)
	return true
}

// account finds or makes one; the lock is held.
func (g *Gateway) account(user string) *account {
	a := g.accounts[user]
	if a == nil {
		a = &account{}
		g.takeAccount(user, a)
	}
	return a
}

func (g *Gateway) takeAccount(user string, a *account) {
	g.accounts[user] = a
	g.adopt(&a.party, func() *batch { return g.journal.add(kindAccount, user, a) })
}

type grantBody struct {
	AppKey       string `json:"app_key"`
	AppSecret    string `json:"app_secret"`
	RefreshToken string `json:"refresh_token"`
}

func (g *Gateway) grant(r *http.Request, body []byte) answer {
	return g.giveToken(r, body, false)
}

func (g *Gateway) refresh(r *http.Request, body []byte) answer {
	return g.giveToken(r, body, true)
}

func (g *Gateway) giveToken(r *http.Request, body []byte, refresh bool) answer {
	user := r.Header.Get("username")
	if user == "" || r.Header.Get("password") == "" {
		return message(http.StatusBadRequest, "Missing required request parameters: [username, password]")
	}
	var in grantBody
	if !decodeBody(body, &in) {
		return refusal("2025")
	}
	if in.AppKey == "" || in.AppSecret == "" || refresh && in.RefreshToken == "" {
		return refusal("2065")
	}
	now := g.opts.Now()

	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.account(user)
	call := CallGrant
	if refresh {
		call = CallRefresh
	}
	allowed := a.allow(now, cmp.Or(g.settings.GrantsPerHour, g.opts.GrantsPerHour))
	switch {
	case !allowed:
		g.tally.add(FaultLockout, call)
	case a.take(call, FaultLockout) != nil:
		allowed, a.BlockedUntil = false, now.Add(time.Hour)
	}
	saved := a.keep()
	if !allowed {
		// How the real lock-out is worded is unconfirmed; this is the form that
		// what stands before the gateway uses.
		ans := message(http.StatusTooManyRequests, "Too many requests")
		ans.saved = saved
		return ans
	}
	if refresh {
		t, ok := g.tokens[in.RefreshToken]
		if !ok || !t.Refresh || t.AppKey != in.AppKey || t.User != user || !now.Before(t.ExpiresAt) {
			ans := message(http.StatusUnauthorized, "Unauthorized")
			ans.saved = saved
			return ans
		}
	} else {
		in.RefreshToken = randomText(alnum, 64)
		g.keepToken(in.RefreshToken, token{AppKey: in.AppKey, User: user, Refresh: true, ExpiresAt: now.Add(refreshTTL)})
	}
	id := randomText(alnum, 64)
	ans := accepted(map[string]any{
		"id_token":      id,
		"token_type":    "Bearer",
		"expires_in":    int(g.opts.TokenTTL / time.Second),
		"refresh_token": in.RefreshToken,
	})
	// The last change; the others are in its batch or in one before it.
	ans.saved = g.keepToken(id, token{AppKey: in.AppKey, User: user, ExpiresAt: now.Add(g.opts.TokenTTL)})
	return ans
}

func (g *Gateway) keepToken(id string, t token) *batch {
	g.tokens[id] = t
	return g.journal.add(kindToken, id, t)
}

// authorized lets a call through that carries a token (bare or as Bearer; both
// are in use) and the key of the application it was granted to.
func (g *Gateway) authorized(next handler) handler {
	return func(r *http.Request, body []byte) answer {
		id := r.Header.Get("Authorization")
		if scheme, rest, ok := strings.Cut(id, " "); ok && strings.EqualFold(scheme, "Bearer") {
			id = rest
		}
		g.mu.Lock()
		t, ok := g.tokens[id]
		g.mu.Unlock()
		switch {
		case !ok || t.Refresh || t.AppKey != r.Header.Get("X-APP-Key"):
			return message(http.StatusUnauthorized, "Unauthorized")
		case !g.opts.Now().Before(t.ExpiresAt):
			return message(http.StatusUnauthorized, "The incoming token has expired")
		}
		return next(r, body)
	}
}
