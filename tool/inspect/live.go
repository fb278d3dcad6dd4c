// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// liveTimeout is how long an observation waits for each answer.
	liveTimeout = 5 * time.Second
	// unknown is the name of a destination that the metrics do not name.
	unknown = "unknown"
)

// observer watches a mesh of outrigger up.
type observer struct {
	dashboardFlags
	service  func(workload, namespace string) string
	meter    meter
	problems problems
	longest  map[string]time.Duration
}

// Observer returns what watches a mesh of outrigger up.
func Observer(cfg Config, watched mesh.Watched) mesh.Observer {
	return &observer{
		dashboardFlags: dashboardFlags{topFlags: topFlags{interval: defaultInterval, reachFlags: reachFlags{askFlags: askFlags{
			cfg: cfg, output: outTable, controls: []string{watched.Control}, timeout: liveTimeout,
		}}}},
		service: watched.Service, meter: meter{timeout: liveTimeout}, longest: map[string]time.Duration{},
	}
}

// Serve implements [mesh.Observer].
func (o *observer) Serve(ctx context.Context, listener net.Listener) error {
	return o.serve(ctx, listener)
}

// Observe implements [mesh.Observer].
func (o *observer) Observe(ctx context.Context) (out mesh.Observation) {
	answers := ask[report.Replica](ctx, o.controls, question{path: "proxies"}, o.timeout)
	if err := answers[0].err; err != nil {
		out.Troubles = append(troubles(o.problems.list(nil)), mesh.Trouble{Text: "the control plane does not answer: " + oneLine(err.Error())})
		return out
	}
	replica := answers[0].value
	proxies := proxiesOf(answers)
	proxies = proxies[:min(len(proxies), maxMeasured)]
	var t traffic
	var outages []outage
	var both errgroup.Group // an agent that does not answer costs the timeout once
	both.Go(func() error { outages = outagesOf(ctx, proxies, o.timeout); return nil })
	both.Go(func() error { t = o.meter.measure(ctx, proxies, nil); return nil })
	wrong := o.problems.find(ctx, &o.askFlags, answers)
	_ = both.Wait() // each answer has its own error
	out.Services = o.services(t)
	out.Troubles = slices.Concat(troubles(wrong.list), rejections(replica.Proxies), o.certificates(outages, proxies))
	if t.old != "" {
		out.Troubles = append(out.Troubles, mesh.Trouble{Warning: true, Text: "rates need Envoy 1.37 or newer: " + t.old})
	}
	return out
}

// services returns the traffic by service, as clients see it.
func (o *observer) services(t traffic) (list []mesh.Service) {
	by := flows{}
	for _, e := range t.Edges {
		name := o.service(e.Destination, e.DestinationNamespace)
		if e.Destination == unknown {
			name = "unknown, from " + o.service(e.Source, e.SourceNamespace)
		}
		one := by.of(way{to: name})
		one.Requests, one.Rate, one.failed = one.Requests+e.Requests, one.Rate+e.Rate, one.failed+e.failed
		for bound, n := range e.buckets {
			one.buckets[bound] += n
		}
	}
	for _, one := range by.list() {
		s := mesh.Service{Name: one.Destination, Requests: one.Requests, Failed: one.failed, Rate: one.Rate}
		if one.P99 != nil {
			s.P99 = *one.P99
		}
		list = append(list, s)
	}
	return list
}

// troubles returns problems as those of a mesh.
func troubles(list []analyze.Finding) (out []mesh.Trouble) {
	for _, f := range list {
		cure := oneLine(f.Cure)
		if f.Code != "" {
			cure += " (" + f.Code + ")"
		}
		out = append(out, mesh.Trouble{
			Warning: f.Severity != analyze.Error, Kind: oneLine(f.Object.Kind), Namespace: oneLine(f.Object.Namespace), Name: oneLine(f.Object.Name),
			Source: oneLine(f.Source), Text: oneLine(f.Message), Cure: cure,
		})
	}
	return out
}

// rejections returns what proxies have refused, and what is held back from others therefore.
func rejections(proxies []report.Proxy) (list []mesh.Trouble) {
	for _, p := range proxies {
		workload := strings.TrimSuffix(oneLine(p.Name), "."+p.Namespace)
		for _, t := range p.Types {
			if t.State == report.Rejected {
				who, text := wordsOf(t.Name, t.Reason)
				refusal := mesh.Trouble{Workload: workload, Text: who + " refuses " + strings.ToUpper(t.Name) + ": " + text}
				for _, h := range p.Held {
					if h.Type == t.Name && len(h.Objects) > 0 {
						o := h.Objects[0]
						refusal.Kind, refusal.Namespace, refusal.Name, refusal.Source = oneLine(o.Kind), oneLine(o.Namespace), oneLine(o.Name), oneLine(o.Source)
					}
				}
				list = append(list, refusal)
			}
		}
		for _, h := range p.Held {
			if h.By == p.Name {
				continue // see above
			}
			list = append(list, mesh.Trouble{Warning: true, Workload: workload, Text: fmt.Sprintf("%s %s is held back, because %s refused it: %s", strings.ToUpper(h.Type), oneLine(h.Name), oneLine(h.By), oneLine(h.Reason))})
		}
	}
	return list
}

// certificates returns the certificates that are missing, or that are not renewed: agents renew them long
// before a tenth of their life is left.
func (o *observer) certificates(outages []outage, proxies []proxy) (list []mesh.Trouble) {
	const rest = 10
	longest := map[string]time.Duration{}
	for i, out := range outages {
		one := mesh.Trouble{Workload: strings.TrimSuffix(proxies[i].name, "."+proxies[i].namespace)}
		for _, c := range out.Credentials {
			if !c.Until.IsZero() && !c.Until.After(out.Now) {
				text := fmt.Sprintf("%s: expired at %s: %s", oneLine(c.What), c.Until.Local().Format(time.TimeOnly), oneLine(c.Then))
				list = append(list, mesh.Trouble{Workload: one.Workload, Text: text, Cure: c.renewed()})
			}
		}
		if out.Error != "" {
			one.Text = "the agent does not answer: " + oneLine(out.Error)
			list = append(list, one)
			continue
		}
		at := slices.IndexFunc(out.Parts, func(p lasting) bool { return p.What == identity })
		if at < 0 {
			continue
		}
		part := out.Parts[at]
		left := part.Until.Sub(out.Now)
		longest[proxies[i].name] = max(left, o.longest[proxies[i].name])
		switch until := part.Until.Local().Format(time.TimeOnly); {
		case part.Missing:
			one.Text = "the workload has no certificate"
		case part.Until.IsZero():
			continue
		case left <= 0:
			one.Text = "the certificate of the workload expired at " + until
		case left*rest < longest[proxies[i].name]:
			one.Text, one.Warning = "the certificate of the workload has not been renewed and expires at "+until, true
		default:
			continue
		}
		list = append(list, one)
	}
	o.longest = longest
	return list
}
