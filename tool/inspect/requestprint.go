// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// shortenToHere removes the working directory from the sources of rules.
func shortenToHere(d *explainedRequest) {
	dir, err := os.Getwd()
	if err != nil {
		return
	}
	dir += string(filepath.Separator)
	for one := &d.Decision; one != nil; one = one.Gateway {
		shortenSources(one, dir)
	}
	for i := range d.Findings {
		d.Findings[i].Source = strings.TrimPrefix(d.Findings[i].Source, dir)
	}
}

// shortenSources removes a directory from the sources of rules.
func shortenSources(d *report.Decision, dir string) {
	var rules []*report.Rule
	for i := range d.Candidates {
		rules = append(rules, &d.Candidates[i].Rule)
	}
	for _, a := range d.Asked {
		rules = append(rules, a.Rule)
	}
	for _, t := range d.Trials {
		rules = append(rules, t.Rule)
	}
	objects := [][]report.Origin{d.Objects}
	if d.TLS != nil {
		objects = append(objects, d.TLS.Objects, d.TLS.Modes)
	}
	if d.Client != nil {
		objects = append(objects, d.Client.Objects)
		for _, to := range d.Client.Destinations {
			objects = append(objects, to.Objects)
		}
	}
	for i := range d.Unused {
		d.Unused[i].Source = strings.TrimPrefix(d.Unused[i].Source, dir)
	}
	for _, list := range objects {
		for i := range list {
			list[i].Source = strings.TrimPrefix(list[i].Source, dir)
		}
	}
	for _, r := range append(rules, d.Rule) {
		if r != nil {
			r.Source = strings.TrimPrefix(r.Source, dir)
		}
	}
}

// decision prints a decision in lines that fit the terminal.
func (v view) decision(d report.Decision) error {
	verdict, sender := "Allowed", "the proxy of the client"
	if d.Gateway != nil {
		sender = "the gateway"
	}
	switch {
	case d.By == "route" && d.Status > 0:
		verdict = fmt.Sprintf("Not sent: %s responds with status %d", sender, d.Status)
	case d.By == "route":
		verdict = "Not sent: " + sender + " closes the connection"
	case d.By == "tls" && d.Status > 0:
		verdict = fmt.Sprintf("Fails with status %d: the two sides do not use TLS alike", d.Status)
	case d.By == "protocol" && d.Status == 0:
		verdict = "Fails: the two sides wait for each other"
	case d.By == "tls":
		verdict = "Fails: the two sides do not use TLS alike"
	case !d.Allowed && d.HTTP:
		verdict = fmt.Sprintf("Denied with status %d", d.Status)
	case !d.Allowed:
		verdict = "Denied: the connection is closed"
	case !succeeds(d):
		at := failingAt(d)
		if at.Gateway == nil {
			sender = "the proxy of the client"
		}
		verdict = fmt.Sprintf("Allowed, but %.3g %% of such requests fail at %s", at.Client.Failing, sender)
	case len(d.Asked) > 0:
		verdict = "Allowed, unless an external authorizer denies it"
	}
	v.say("%s\n", verdict)
	if d.HTTP && d.Method != "" {
		v.field("request", d.Method+" "+d.Path+", host "+cmp.Or(d.Host, "unknown"))
	}
	if d.Gateway != nil {
		v.gateway(*d.Gateway)
	}
	v.field("from", strings.TrimSuffix(cmp.Or(d.Identity, "a client without a certificate")+", "+d.Address, ", "))
	if d.Client != nil {
		v.hop(*d.Client)
	}
	if d.By != "" && d.By != "route" && (d.Client == nil || d.Client.Proxy != d.Proxy || d.TLS != nil) {
		at := fmt.Sprintf("%s, port %d", d.Proxy, d.Port)
		if d.Others > 0 {
			at += ", like " + count(d.Others, "other proxy", "other proxies")
		}
		v.field("at", at)
		v.waits(d.Wait)
		if d.Deadline != "" {
			v.field("", "timeout "+d.Deadline+" (the grpc-timeout of the request)")
		}
	}
	if d.By != "route" || len(d.Client.Destinations) == 0 { // those have their reasons
		v.because(d)
	}
	if d.TLS != nil {
		v.secured(*d.TLS)
	}
	for _, a := range d.Asked {
		by := ""
		if a.Rule != nil {
			by = ", by " + ruleText(*a.Rule)
		}
		v.say("\nThe provider %s is asked%s\n", a.Provider, by)
	}
	if len(d.Candidates) > 0 {
		v.say("\nRules that allow requests, and what does not match:\n")
	}
	shown, left := cut(v.flags, d.Candidates)
	for _, c := range shown {
		v.candidate(c)
	}
	v.more(left)
	for _, t := range d.Trials {
		if t.Rule == nil {
			v.say("\nIn dry run: denied, as no rule that allows requests matches\n")
		} else {
			v.say("\nIn dry run: denied by %s\n", ruleText(*t.Rule))
		}
	}
	for _, name := range d.Skipped {
		v.say("\nNot evaluated: %s, which may deny or change the request\n", name)
	}
	v.unrecorded(d.Unrecorded)
	return nil
}

// unrecorded prints what is as now because it is not known of the past.
func (v view) unrecorded(u report.Unrecorded) {
	if !u.ServicesSince.IsZero() {
		v.say("\nServices and endpoints are those of now: their history begins at %s\n", v.clock(u.ServicesSince))
	}
	if !u.MeshSince.IsZero() {
		v.say("\nThe mesh config is that of now: its history begins at %s\n", v.clock(u.MeshSince))
	}
	if len(u.Present) > 0 {
		v.say("\nRoutes and Gateways of the Gateway API depend on %s, which are those of now\n", strings.Join(u.Present, ", "))
	}
	if len(u.Current) > 0 {
		v.say("\nAs of now, because they are not recorded: %s\n", strings.Join(u.Current, ", "))
	}
}

// gateway prints what a gateway decides that the request passes.
func (v view) gateway(d report.Decision) {
	if d.Gateway != nil {
		v.gateway(*d.Gateway)
	}
	v.field("from", strings.TrimSuffix(cmp.Or(d.Identity, "a client without a certificate")+", "+d.Address, ", "))
	if d.Client != nil {
		v.hop(*d.Client)
	}
	v.field("gateway", fmt.Sprintf("%s, port %d", d.Proxy, d.Port))
	v.because(d)
}

// hop prints where the proxy of a client sends a request.
func (v view) hop(h report.Hop) {
	v.field("client", strings.TrimSuffix(h.Proxy+", listener "+h.Listener, ", listener "))
	switch {
	case h.VirtualHost == "": // requests are not read
	case h.Route != "":
		v.field("route", fmt.Sprintf("%s of %s", h.Route, h.VirtualHost))
	case len(h.Destinations) > 0 || h.Location != "" || len(h.Faults) > 0:
		v.field("route", "without a name, of "+h.VirtualHost)
	default:
		v.field("route", "none of "+h.VirtualHost)
	}
	v.origins(h.Objects)
	if h.Route == "" && len(h.Destinations) == 0 {
		for _, t := range h.Tried {
			v.field("", strings.TrimPrefix(t.Route+" is not for it: ", " ")+t.Differs)
		}
	}
	var limits []string
	if h.Timeout != "" {
		limits = append(limits, "timeout "+h.Timeout+map[bool]string{true: " (the grpc-timeout of the request)"}[h.TimeoutBy == "grpc-timeout"])
	}
	if h.PerTry != "" {
		limits = append(limits, h.PerTry+" per attempt")
	}
	if h.Idle != "" {
		limits = append(limits, h.Idle+" without a byte")
	}
	if h.Retries > 0 {
		limits = append(limits, count(int(h.Retries), "retry", "retries"))
	}
	if len(limits) > 0 {
		v.field("", strings.Join(limits, ", "))
	}
	v.waits(h.Wait)
	if h.Note != "" {
		v.field("", h.Note)
	}
	for _, f := range h.Faults {
		v.field("fault", f)
	}
	if h.Location != "" {
		v.field("redirect", "to "+h.Location)
	}
	for _, to := range h.Destinations {
		name := to.Cluster
		if to.Percent < 100 {
			name = strconv.FormatFloat(to.Percent, 'g', 3, 64) + " % " + name
		}
		v.field("cluster", name)
		v.origins(to.Objects)
		if to.All > 0 {
			with := "in plaintext"
			switch {
			case to.TLS:
				with = "with TLS"
			case to.MutualTLS > 0 && to.MutualTLS == to.Healthy:
				with = "with mutual TLS"
			case to.MutualTLS > 0:
				with = fmt.Sprintf("%d with mutual TLS", to.MutualTLS)
			}
			if to.HTTP == "2" && h.VirtualHost != "" {
				with += ", HTTP/2"
			}
			v.field("", fmt.Sprintf("%d of %s, %s: %s", to.Healthy, count(to.All, "endpoint", "endpoints"), with, strings.Join(to.Endpoints, ", ")))
		}
		if to.Reason != "" {
			v.field("", to.Reason)
		}
	}
}

// waits prints how long a listener waits for a client whose server speaks first.
func (v view) waits(w *report.Wait) {
	const cure = "name the port tcp-…, mysql or mongo, or set its appProtocol"
	switch {
	case w == nil:
	case w.For == "":
		v.field("waits", "without end for the first bytes of the client: "+cure)
	case w.Closes:
		v.field("waits", w.For+" for the first bytes of the client, and closes the connection: "+cure)
	default:
		v.field("waits", w.For+" for the first bytes of the client, then forwards the connection: "+cure)
	}
}

// field prints a name and its value, shortened if it is very long.
func (v view) field(name, value string) { v.line(name, columns.Shorten(oneLine(value), maxErrText)) }

// line prints a name and its value.
func (v view) line(name, value string) { v.say("  %-8s %s\n", name, value) }

// because prints what decides.
func (v view) because(d report.Decision) {
	switch {
	case d.Rule != nil:
		v.field("rule", ruleName(*d.Rule))
		if d.Rule.Source != "" {
			v.field("source", d.Rule.Source)
		}
		for _, a := range d.Matched {
			v.field("matches", a.Name+": "+valueText(a))
		}
	case d.By == "no-rule":
		v.field("because", "no rule that allows requests matches")
	case d.By == "nothing":
		v.field("because", "no policy denies the request, and none allows requests")
	case d.Reason != "":
		v.field("because", d.Reason)
	}
	v.origins(d.Objects)
}

// origins prints objects with their places.
func (v view) origins(list []report.Origin) {
	for _, o := range list {
		v.field("", strings.TrimSuffix(briefly(o.Ref)+", "+o.Source, ", "))
	}
}

// related prints the objects without effect on a request, and the findings about objects that have to do
// with it.
func (v view) related(d explainedRequest) {
	if len(d.Troubles) > 0 {
		v.say("\nThe proxies say now:\n")
	}
	for _, text := range d.Troubles {
		v.say("  %s\n", oneLine(text))
	}
	if len(d.Unused) > 0 {
		v.say("\nWithout effect on this request:\n")
	}
	unused, left := cut(v.flags, d.Unused)
	for _, o := range unused {
		v.say("  %s\n", strings.TrimSuffix(briefly(o.Ref)+", "+o.Source, ", "))
		v.say("    %s\n", oneLine(o.Reason))
	}
	v.more(left)
	if len(d.Findings) > 0 {
		v.say("\nFound by outrigger analyze, about objects that have to do with this request:\n")
	}
	findings, left := cut(v.flags, d.Findings)
	for _, f := range findings {
		_, _ = io.WriteString(v.out, f.Text(v.flags.width())) // the terminal may be closed
	}
	v.more(left)
}

// ruleName returns the name of a rule, as namespace/name[index].
func ruleName(r report.Rule) string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + r.Name
	}
	if r.Index >= 0 {
		name += "[" + strconv.Itoa(r.Index) + "]"
	}
	return name
}

func ruleText(r report.Rule) string {
	if r.Source == "" {
		return ruleName(r)
	}
	return ruleName(r) + " (" + r.Source + ")"
}

// valueText returns the value of an attribute.
func valueText(a report.Attribute) string {
	if a.Value != "" {
		return a.Value
	}
	switch {
	case a.Name == "principals":
		return "the client has no certificate"
	case strings.HasPrefix(a.Name, "request.auth."):
		return "the request has no valid token with it"
	case strings.HasSuffix(strings.ToLower(a.Name), "ipblocks"):
		return "the address is not known: name it with --address"
	}
	return "there is none"
}

func (v view) candidate(c report.Candidate) {
	v.say("  %s\n", oneLine(ruleText(c.Rule)))
	const most = 5
	text := c.Reason
	if text == "" {
		text = c.Attribute.Name + ": " + valueText(c.Attribute)
		switch {
		case c.Excluded:
			text += " is excluded, or ambiguous"
		case len(c.Wanted) > most:
			text += fmt.Sprintf(", not %s or %d more", strings.Join(c.Wanted[:most], ", "), len(c.Wanted)-most)
		case len(c.Wanted) > 0:
			text += ", not " + strings.Join(c.Wanted, ", ")
		}
	}
	v.say("    %s\n", oneLine(text))
}
