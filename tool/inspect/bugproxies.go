// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of what a report has of one proxy.
const (
	proxyWithin    = 30 * time.Second
	maxReportProxy = 64 << 20
	proxiesAtOnce  = 4
)

// reportQuestion is a question whose answer is part of a report.
type reportQuestion struct {
	file, path string
	query      url.Values
}

// ofAgent and ofEnvoy return what an agent and an Envoy are asked. If nobody answers the first question, the
// others are not asked.
func ofAgent() []reportQuestion {
	return []reportQuestion{
		{"agent-ready.txt", "/healthz/ready", nil},
		{"agent-outage.json", "/debug/outage", nil},
		{"agent-config.json", "/debug/config", nil},
		{"agent-xds.json", "/debug/xds", nil},
		{"agent-names.json", "/debug/ndsz", nil},
	}
}

func ofEnvoy() []reportQuestion {
	asJSON := url.Values{"format": {"json"}}
	return []reportQuestion{
		{"envoy-server_info.json", "/server_info", nil},
		{"envoy-config_dump.json", "/config_dump", url.Values{"include_eds": {""}}},
		{"envoy-clusters.json", "/clusters", asJSON},
		{"envoy-listeners.json", "/listeners", asJSON},
		{"envoy-certs.json", "/certs", nil},
		{"envoy-stats.json", "/stats", url.Values{"format": {"json"}, "usedonly": {""}}},
	}
}

// ofProxies adds what the Envoys and agents of proxies say: of those that the control planes know, first those
// that are not in sync, and of those of this machine.
func (b *bugReport) ofProxies(ctx context.Context, addresses []string) {
	here, err := b.flags.here(ctx, addresses)
	if err != nil {
		b.missed("proxies of this machine", err)
	}
	var list []proxy
	for _, p := range slices.Concat(proxiesOf(b.known), proxiesOf(here)) {
		if !slices.ContainsFunc(list, func(other proxy) bool { return other.name == p.name }) {
			list = append(list, p)
		}
	}
	if n := len(list) - b.flags.proxies; n > 0 {
		list = list[:b.flags.proxies]
		b.missed(count(n, "other proxy", "other proxies"), errors.New("collect more with --proxies"))
	}
	var g errgroup.Group
	g.SetLimit(proxiesAtOnce)
	turn := make(chan struct{}) // closed when those before have been added
	close(turn)
	for _, p := range list {
		mine, next := turn, make(chan struct{})
		turn = next
		g.Go(func() error {
			defer close(next)
			parts := b.flags.answersOf(ctx, p)
			<-mine
			b.addProxy(path.Join("proxies", strings.ReplaceAll(p.name, "/", "_")), parts)
			return nil
		})
	}
	_ = g.Wait() // each answer has its own error
}

// proxyAnswer is an answer of a proxy.
type proxyAnswer struct {
	file    string
	content []byte
	err     error
}

// addProxy adds the answers of a proxy.
func (b *bugReport) addProxy(dir string, parts []proxyAnswer) {
	n, size := 0, 0
	for _, part := range parts {
		size += len(part.content)
		switch {
		case part.err != nil:
			b.missed(path.Join(dir, part.file), part.err)
		case size > maxReportProxy:
			b.missed(path.Join(dir, part.file), fmt.Errorf("the proxy has more than %d bytes", maxReportProxy))
		case b.put(path.Join(dir, part.file), part.content):
			n++
		}
	}
	if n > 0 {
		b.reached = true
		b.say.say("collected  %s: %s\n", dir, count(n, "file", "files"))
	}
}

// answersOf asks the agent and the Envoy of a proxy.
func (f *bugReportFlags) answersOf(ctx context.Context, p proxy) (list []proxyAnswer) {
	ctx, cancel := context.WithTimeout(ctx, proxyWithin)
	defer cancel()
	for _, of := range []struct {
		port      string
		questions []reportQuestion
	}{{agentPort, ofAgent()}, {adminPort, ofEnvoy()}} {
		at, done, err := p.reach(ctx, of.port, f.timeout)
		if err != nil {
			list = append(list, proxyAnswer{file: "port " + of.port, err: err})
			continue
		}
		for i, q := range of.questions {
			one := proxyAnswer{file: q.file}
			one.content, one.err = proxy{agent: at}.read(ctx, q.path, q.query, f.timeout)
			said := (*answerError)(nil)
			if errors.As(one.err, &said) && (q.path == "/healthz/ready" || q.path == "/debug/ndsz") {
				one.content, one.err = []byte(said.Error()), nil // not ready, or without DNS, is an answer
			}
			list = append(list, one)
			if i == 0 && one.err != nil && said == nil {
				break // nobody answers there
			}
		}
		done()
	}
	return list
}
