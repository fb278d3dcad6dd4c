// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// asked is what the query of /debug/requests asks for.
type asked struct {
	length time.Duration // for: at most maxCapture
	logs   []string      // direction: inbound, the default, outbound or both
	sample int           // sample: the percentage of requests that Envoy logs, 100 by default
	rate   int           // rate: requests a second; 0 for a recording, which has no limit
	method string        // method, or "" for all
	path   string        // path: the beginning of paths
	status []string      // status: codes and classes such as 5xx, with commas between
	source string        // source: the client of requests to the workload, see [from]
}

func parseAsked(query url.Values) (*asked, error) {
	a := &asked{sample: 100, method: query.Get("method"), path: query.Get("path"), source: query.Get("source")}
	var err error
	if a.length, err = time.ParseDuration(query.Get("for")); err != nil || a.length <= 0 || a.length > maxCapture {
		return nil, fmt.Errorf("for=%q must be a duration of at most %s, such as 30s", query.Get("for"), maxCapture)
	}
	switch direction := query.Get("direction"); direction {
	case "", "inbound":
		a.logs = []string{node.RecordLog}
	case "outbound":
		a.logs = []string{node.RecordSentLog}
	case "both":
		a.logs = []string{node.RecordLog, node.RecordSentLog}
	default:
		return nil, fmt.Errorf("direction=%q must be inbound, outbound or both", direction)
	}
	for name, to := range map[string]struct {
		field *int
		most  int
	}{"sample": {&a.sample, 100}, "rate": {&a.rate, maxRate}} {
		if text := query.Get(name); text != "" {
			if *to.field, err = strconv.Atoi(text); err != nil || *to.field < 1 || *to.field > to.most {
				return nil, fmt.Errorf("%s=%q must be a number from 1 to %d", name, text, to.most)
			}
		}
	}
	if text := query.Get("status"); text != "" {
		a.status = strings.Split(strings.ToLower(text), ",")
	}
	for _, s := range a.status {
		if code, err := strconv.ParseUint(strings.TrimSuffix(s, "xx"), 10, 16); err != nil || code > 599 || strings.HasSuffix(s, "xx") && (code < 1 || code > 5) {
			return nil, fmt.Errorf("status=%q must be codes or classes with commas between, such as 404,5xx; 0 is no response", s)
		}
	}
	return a, nil
}

// selection returns the requests to capture. Those of a tap have no headers, and a tap has no
// connections. The others have the given claims.
func (a *asked) selection(claims []string) xdsproxy.Selection {
	if a.rate == 0 {
		return xdsproxy.Selection{Claims: claims}
	}
	return xdsproxy.Selection{Rate: a.rate, Keep: func(r *xdsproxy.Request) bool {
		r.Headers, r.UserAgent, r.ForwardedFor = nil, "", ""
		code := strconv.FormatUint(r.Code, 10)
		return !r.Connection && (a.method == "" || strings.EqualFold(a.method, r.Method)) && strings.HasPrefix(r.Path, a.path) &&
			(len(a.status) == 0 || slices.Contains(a.status, code) || slices.Contains(a.status, code[:1]+"xx")) &&
			(a.source == "" || !r.Sent && from(a.source, r.Peer))
	}}
}

// from reports whether an identity is the source: an identity, NAMESPACE/ACCOUNT, ACCOUNT, or none for
// clients without a certificate.
func from(source string, identity *string) bool {
	if identity == nil {
		return source == "none"
	}
	namespace, account, qualified := strings.Cut(source, "/")
	if !qualified {
		return strings.HasSuffix(*identity, "/sa/"+source)
	}
	return *identity == source || strings.HasSuffix(*identity, "/ns/"+namespace+"/sa/"+account)
}
