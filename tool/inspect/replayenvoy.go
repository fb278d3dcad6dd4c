// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

const (
	// maxDistinct is how many different records are replayed at most.
	maxDistinct = 1_000_000
	// connections is how many are used at a time, and perConnection how many requests each has at most.
	connections   = 8
	perConnection = 256
	// maxDisputed is how many examples of disagreement are printed.
	maxDisputed = 10
)

// recorded are the fields of a record that a request of a trial has.
type recorded struct {
	Method  string             `json:"method"`
	Path    string             `json:"path"`
	Host    string             `json:"authority"`
	Remote  string             `json:"downstream_remote_address"`
	Local   string             `json:"downstream_local_address"`
	SNI     string             `json:"requested_server_name"`
	Peer    json.RawMessage    `json:"downstream_peer_uri_san,omitempty"` // null without a certificate
	For     string             `json:"x_forwarded_for,omitempty"`
	Agent   string             `json:"user_agent,omitempty"`
	ID      string             `json:"request_id,omitempty"`
	Headers map[string]*string `json:"request_headers,omitempty"`
	Details string             `json:"response_code_details,omitempty"`
	Claims  json.RawMessage    `json:"request_claims,omitempty"` // null without a token
	Omitted []string           `json:"request_claims_omitted,omitempty"`

	// Upstream says whether the workload has sent the request itself.
	Upstream string `json:"upstream_cluster,omitempty"`
}

// distinct are equal records.
type distinct struct {
	recorded
	count int
	flip  int // index in the sum, or -1
	tried *report.Tried
}

// second replays records by an Envoy, beside the control plane.
type second struct {
	trial     *trial
	addresses bool            // whether rules may compare addresses of clients
	queries   bool            // whether rules may compare the query of the path
	reads     map[string]bool // whether rules may compare a header

	known  map[string]*distinct // by the fields that rules may compare
	all    []*distinct
	asked  int // how many of all the control plane has answered
	unread int // lines that are not JSON
	report.Second
}

// newSecond starts an Envoy with listeners of the control plane.
func newSecond(ctx context.Context, binary string, listeners []json.RawMessage) (*second, error) {
	t, err := newTrial(ctx, binary, listeners)
	if err != nil {
		return nil, err
	}
	return &second{trial: t, addresses: t.readsAddresses(), queries: t.reads(":path") || strings.Contains(t.text, "fromParams"), reads: map[string]bool{}, known: map[string]*distinct{}}, nil
}

// add adds a record, and returns what the control plane is asked about it. It returns nil if an equal
// record is known.
func (s *second) add(line []byte) (question []byte, err error) {
	var r recorded
	if json.Unmarshal(line, &r) != nil {
		s.unread++
		return nil, nil
	}
	s.reduce(&r)
	key, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if d := s.known[string(key)]; d != nil {
		d.count++
		return nil, nil
	}
	if len(s.all) == maxDistinct {
		return nil, fmt.Errorf("there are more than %d different records: replay the files one by one", maxDistinct)
	}
	d := &distinct{recorded: r, count: 1, flip: -1}
	s.known[string(key)], s.all = d, append(s.all, d)
	return key, nil
}

// reduce removes what no rule compares.
func (s *second) reduce(r *recorded) {
	r.ID = s.compared("x-request-id", r.ID)
	r.Agent = s.compared("user-agent", r.Agent)
	if !s.queries {
		r.Path, _, _ = strings.Cut(r.Path, "?")
	}
	if !s.addresses {
		r.For = s.compared("x-forwarded-for", r.For)
		if _, err := netip.ParseAddrPort(r.Remote); err == nil {
			r.Remote = ""
		}
	} else if remote, err := netip.ParseAddrPort(r.Remote); err == nil {
		r.Remote = netip.AddrPortFrom(remote.Addr(), 1).String()
	}
	if !strings.HasPrefix(r.Details, report.RefusedToken) {
		r.Details = ""
	}
	var claims map[string]json.RawMessage
	if json.Unmarshal(r.Claims, &claims) == nil && claims != nil {
		maps.DeleteFunc(claims, func(name string, _ json.RawMessage) bool { return !s.trial.readsClaim(name) })
		r.Claims, _ = json.Marshal(claims) // it was read from JSON
	}
	r.Omitted = slices.DeleteFunc(r.Omitted, func(name string) bool { return !s.trial.readsClaim(name) })
	for name, value := range r.Headers {
		if value == nil || s.compared(strings.ToLower(name), "x") == "" {
			delete(r.Headers, name)
		}
	}
}

// compared returns the value of a header, or "" if no rule compares the header.
func (s *second) compared(name, value string) string {
	is, ok := s.reads[name]
	if !ok {
		is = s.trial.reads(name)
		s.reads[name] = is
	}
	if is {
		return value
	}
	return ""
}

// pair is a request with the policies of now, and with others.
type pair struct{ now, then *tried }

// answered takes the answer of the control plane to the questions since the last answer, and compares
// it with the decisions of the Envoy. flips are the indices of its flips in the sum.
func (s *second) answered(ctx context.Context, a report.Replay, flips []int) error {
	questions := s.all[s.asked:]
	s.asked = len(s.all)
	groups, results := map[caller][]*tried{}, map[*distinct]pair{}
	for i := range a.Tried {
		t := &a.Tried[i]
		if t.Line < 0 || t.Line >= len(questions) {
			return fmt.Errorf("the control plane returned a decision for the line %d of %d", t.Line, len(questions))
		}
		d := questions[t.Line]
		d.tried = t
		if t.Flip >= 0 && t.Flip < len(flips) {
			d.flip = flips[t.Flip]
		}
		text, ok := s.text(d)
		if _, err := netip.ParseAddrPort(d.Remote); s.addresses && err != nil {
			ok = false
		}
		if !ok {
			s.Unsent += d.count
			continue
		}
		both := pair{&tried{method: d.Method, bytes: text}, &tried{method: d.Method, bytes: text}}
		results[d] = both
		s.Distinct++
		if t.Listener == "" {
			continue // nothing listens
		}
		for prefix, r := range map[string]*tried{report.TrialNow: both.now, report.TrialThen: both.then} {
			from := d.caller(prefix, t)
			groups[from] = append(groups[from], r)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(connections)
	for from, requests := range groups {
		for part := range slices.Chunk(requests, perConnection) {
			g.Go(func() error { return s.trial.ask(ctx, from, part) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for d, r := range results {
		if d.tried.Now != r.now.allowed || d.tried.Then != r.then.allowed {
			s.Disputes += d.count
			if len(s.Disputed) < maxDisputed {
				s.Disputed = append(s.Disputed, d.dispute(r.now.allowed, r.then.allowed))
			}
		}
	}
	return nil
}

// total counts the records in the sum of the answers, which has one of several that are equal.
func (s *second) total(sum *report.Replay) {
	sum.Decided, sum.Connections, sum.Other, sum.Unread, sum.Unnamed, sum.Unclaimed = 0, 0, 0, s.unread, 0, 0
	for i := range sum.Flips {
		sum.Flips[i].Count = 0
	}
	for _, d := range s.all {
		switch {
		case d.tried != nil:
			sum.Decided += d.count
			if d.connection() {
				sum.Connections += d.count
			}
			if d.tried.Unnamed {
				sum.Unnamed += d.count
			}
			if d.tried.Unclaimed {
				sum.Unclaimed += d.count
			}
		case d.Upstream != "" && !strings.HasPrefix(strings.ToLower(d.Upstream), "inbound"):
			sum.Other += d.count
		default:
			sum.Unread += d.count
		}
		if d.flip >= 0 {
			sum.Flips[d.flip].Count += d.count
		}
	}
	sum.Envoy = &s.Second
}

// caller returns who sends a record.
func (d *distinct) caller(prefix string, t *report.Tried) caller {
	c := caller{listener: prefix + t.Listener, server: t.Server, tls: t.TLS, opaque: t.Opaque, sni: d.SNI, connection: d.connection()}
	_ = json.Unmarshal(d.Peer, &c.identity) // the control plane has read it
	if remote, err := netip.ParseAddrPort(d.Remote); err == nil {
		c.peer = remote.Addr().Unmap().String()
	}
	return c
}

// connection reports whether it is a connection, whose requests were not read.
func (d *distinct) connection() bool { return d.Method == "" || d.Method == "-" }

// accepted is what is sent to ports that return what they receive.
const accepted = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// text returns what is sent for a record. It reports false if that cannot be sent.
func (s *second) text(d *distinct) (text []byte, ok bool) {
	claims, t := map[string]any{}, d.tried
	_ = json.Unmarshal(d.Claims, &claims) // the control plane has read it
	switch {
	case !t.HTTP:
		return []byte(accepted), true
	case d.connection() || d.Details != "":
		return nil, false
	case len(claims) == 0:
		return d.request(nil, "")
	case t.Token == nil: // it is refused, or not looked for
		text, ok = d.request(nil, "")
		return text, ok && !s.trial.readsTokens()
	}
	token, err := s.trial.issuer.token(claims)
	if err != nil {
		return nil, false
	}
	return d.request(t.Token, token)
}

// request returns a record as a request of HTTP/1.1, with a token at a place, which may be nil. It
// reports false if it cannot be written as one.
func (d *distinct) request(at *report.Token, token string) ([]byte, bool) {
	var out bytes.Buffer
	good := d.Method != "CONNECT"
	if at == nil {
		at = &report.Token{}
	}
	path := d.Path
	if at.Param != "" {
		separator := "?"
		if strings.Contains(path, separator) {
			separator = "&"
		}
		path += separator + url.QueryEscape(at.Param) + "=" + token
	}
	word := func(text, not string) string {
		good = good && !strings.ContainsAny(text, "\x00\r\n"+not)
		return text
	}
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\nHost: %s\r\n", word(d.Method, " "), word(path, " "), word(d.Host, " "))
	for name, value := range map[string]string{"x-forwarded-for": d.For, "user-agent": d.Agent, "x-request-id": d.ID} {
		if value != "" {
			fmt.Fprintf(&out, "%s: %s\r\n", name, word(value, ""))
		}
	}
	if at.Header != "" {
		fmt.Fprintf(&out, "%s: %s%s\r\n", at.Header, at.Prefix, token)
	}
	if at.Cookie != "" {
		fmt.Fprintf(&out, "Cookie: %s=%s\r\n", at.Cookie, token)
	}
	for name, value := range d.Headers {
		if strings.EqualFold(name, at.Header) {
			continue
		}
		fmt.Fprintf(&out, "%s: %s\r\n", word(name, ": "), word(*value, ""))
		good = good && name != "" && !slices.Contains([]string{"content-length", "transfer-encoding", "connection", "upgrade", "host", "expect"}, strings.ToLower(name))
	}
	out.WriteString("\r\n")
	return out.Bytes(), good
}

// dispute describes a record about which Envoy does not decide as the control plane says.
func (d *distinct) dispute(now, then bool) string {
	say := func(allowed bool) string {
		if allowed {
			return "allowed"
		}
		return "denied"
	}
	if d.connection() {
		return fmt.Sprintf("a connection to %s: Envoy %s, then %s; the control plane: %s, then %s", d.Local, say(now), say(then), say(d.tried.Now), say(d.tried.Then))
	}
	return fmt.Sprintf("%s %s, host %s: Envoy %s, then %s; the control plane: %s, then %s",
		d.Method, d.Path, d.Host, say(now), say(then), say(d.tried.Now), say(d.tried.Then))
}
