// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// requestFlags are the flags of the request to explain.
type requestFlags struct {
	askFlags
	from, to, namespace, at          string
	method, path, host, address, sni string
	port                             uint16
	headers                          []string
	jwt                              string
	log                              string
	logged                           *logged // the line of the log; may be nil
	certificates                     bool
}

func newExplainRequestCommand(cfg Config) *cobra.Command {
	f := requestFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "request --from CLIENT --to WORKLOAD",
		Short: "Print where a request goes, whether it is allowed, and what decides",
		Long: `Print what the proxies decide about a request, without sending it: the route,
cluster and endpoints that the proxy of the client chooses, with the objects that
decide, and which rule of which AuthorizationPolicy allows or denies the request
at the workload, and by which attributes. If no
rule that allows requests matches, print these rules, and the first attribute of
the request that each does not match. The control plane decides by the
configuration that the proxies have. Also print whether the connection uses mutual
TLS, and why, with the certificates of both sides, for which their proxies are asked.

If the request is not allowed, or a share of such requests fails at the proxy of the
client, print when all were allowed last, and which versions of which objects and
services changed that. At most 30 earlier states are tried, for 10 s.

CLIENT is a service or a proxy, as in frontend.shop, a service account, as in
shop/frontend, an identity, as in spiffe://cluster.local/ns/shop/sa/frontend, or
none for a client without mutual TLS. WORKLOAD is a service or a proxy.

With --log, the request is the first line of an access log in JSON, or of outrigger
tap -o json; other flags change it. The log of the client's proxy says where the
request was sent: name the client with --from. That of the workload's proxy says who
sent it: name the workload with --to. The proxies decide as they do now.

With --at, the control plane decides by the objects and the mesh config of that time,
and by the services and endpoints of then, to 30 s.

The exit code is 0 if the request is allowed, and 1 if it is not, or if some fail.`,
		Example: "  outrigger explain request --from frontend --to catalog\n" +
			"  outrigger explain request --from shop/orders --to catalog.shop \\\n    --method POST --path /items --header x-team=red\n" +
			"  outrigger explain request --from none --to catalog-1.shop --port 8080 \\\n    --jwt token.txt\n" +
			"  outrigger explain request --from frontend --to catalog --at 14:02\n" +
			"  grep -m1 '\"response_code\":403' access.log |\n    outrigger explain request --to catalog --log -",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cfg.Exit(exitUsage, fmt.Errorf("the argument %q is not expected: name the client with --from, and the workload with --to", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.at, "at", "", "decide by the objects of this time: a duration (2h), a time of the day (14:02) or a date and time (2006-01-02T15:04)")
	flags.StringVar(&f.from, "from", "", "client of the request: a service, a proxy, NAMESPACE/SERVICEACCOUNT, an identity, or none")
	flags.StringVar(&f.to, "to", "", "the service or the proxy that the request is sent to")
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of services and proxies that are named without one")
	flags.StringVar(&f.method, "method", http.MethodGet, "method of the request")
	flags.StringVar(&f.path, "path", "/", "path of the request, with its query")
	flags.StringVar(&f.host, "host", "", "host of the request (default: that of the service)")
	flags.Uint16Var(&f.port, "port", 0, "port of the service, or of the workload if --to is a proxy (default: the only one)")
	flags.StringArrayVar(&f.headers, "header", nil, "header of the request, as NAME=VALUE; several times for several")
	flags.StringVar(&f.jwt, "jwt", "", "token for the header Authorization, or a file with the token")
	flags.StringVar(&f.address, "address", "", "address of the client (default: that of the workload, if it is one)")
	flags.StringVar(&f.log, "log", "", "file whose first line is the request, in the form of an access log in JSON, or - for standard input")
	flags.BoolVar(&f.certificates, "certificates", true, "ask the proxies of both sides for their certificates, unless --at is given")
	flags.StringVar(&f.sni, "sni", "", "server name in the TLS handshake of the client")
	f.add(cmd)
	for _, name := range []string{"from", "to"} {
		if err := cmd.RegisterFlagCompletionFunc(name, completeProxy(&f.askFlags)); err != nil {
			panic(err) // the flag exists, and has no other completion
		}
	}
	return cmd
}

// fields returns the fields of the question.
func (f *requestFlags) fields() (url.Values, error) {
	token, err := tokenOf(f.jwt)
	if err != nil {
		return nil, err
	}
	within := func(name string) string {
		if f.namespace == "" || name == "" || name == "none" || strings.ContainsAny(name, "./") {
			return name
		}
		return name + "." + f.namespace
	}
	out := url.Values{"header": f.headers}
	for name, value := range map[string]string{
		"from": within(f.from), "to": within(f.to), "method": f.method, "path": f.path, "host": f.host, "address": f.address, "sni": f.sni, "jwt": token,
	} {
		if value != "" {
			out.Set(name, value)
		}
	}
	if f.at != "" {
		at, err := moment(f.at, time.Now())
		if err != nil {
			return nil, err
		}
		out.Set("at", at.Format(time.RFC3339Nano))
	}
	if f.port != 0 {
		out.Set("port", strconv.Itoa(int(f.port)))
	}
	if f.logged != nil {
		f.logged.fields(out)
	}
	return out, nil
}

func (f *requestFlags) run(cmd *cobra.Command) error {
	if f.log != "" {
		var err error
		if f.logged, err = readLogged(f.log, cmd.InOrStdin()); err != nil {
			return f.cfg.Exit(exitUsage, err)
		}
		f.logged.complete(f, cmd.Flags().Changed)
	}
	d, err := f.decision(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if d.TLS != nil && f.certificates && f.at == "" {
		f.addCertificates(cmd.Context(), d.TLS)
	}
	return f.print(cmd, d)
}

// succeeds reports whether all requests like one are allowed.
func succeeds(d report.Decision) bool { return d.Allowed && (d.Client == nil || d.Client.Failing == 0) }

// explainedRequest is a request in the JSON and YAML output.
type explainedRequest struct {
	report.Decision
	// LastAllowed is nil if all requests are allowed.
	LastAllowed *lastWorked `json:"last_allowed,omitempty"`
}

// decision asks control planes. It prints which ones do not answer if none does.
func (f *requestFlags) decision(ctx context.Context, complaints io.Writer) (d report.Decision, err error) {
	if f.from == "" || f.to == "" {
		return d, f.cfg.Exit(exitUsage, errors.New("client and workload are missing: write --from CLIENT --to WORKLOAD, as in --from frontend --to catalog"))
	}
	fields, err := f.fields()
	if err != nil {
		return d, f.cfg.Exit(exitUsage, err)
	}
	addresses, err := f.addresses()
	if err != nil {
		return d, err
	}
	answers := ask[report.Decision](ctx, addresses, question{path: "request", fields: fields, form: true}, f.timeout)
	var refusal *answerError
	for _, a := range answers {
		if a.err == nil {
			return a.value, nil
		}
		var said *answerError
		if errors.As(a.err, &said) && (refusal == nil || refusal.code == http.StatusNotFound) {
			refusal = said // one of a control plane that knows the workload says more
		}
	}
	if refusal != nil {
		return d, f.cfg.Exit(exitFailed, errors.New(refusal.text))
	}
	complain(complaints, answers)
	return d, f.cfg.Exit(exitFailed, nil)
}

// print prints a decision, and then what was different, which may take triedFor.
func (f *requestFlags) print(cmd *cobra.Command, d report.Decision) error {
	v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}
	if f.forReaders() {
		shortenToHere(&d)
		if err := v.decision(d); err != nil {
			return err
		}
	}
	last, err := f.lastAllowed(cmd.Context(), d)
	switch {
	case err != nil:
		return err
	case !f.forReaders():
		err = f.write(v.out, explainedRequest{d, last})
	default:
		if last != nil {
			v.lastWorked(*last)
		}
		if f.logged != nil {
			v.say("\n")
			v.field("logged", f.logged.result())
		}
	}
	if err == nil && !succeeds(d) {
		err = f.cfg.Exit(exitFailed, nil)
	}
	return err
}

// shortenToHere removes the working directory from the sources of rules.
func shortenToHere(d *report.Decision) {
	if dir, err := os.Getwd(); err == nil {
		shortenSources(d, dir+string(filepath.Separator))
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
	verdict := "Allowed"
	switch {
	case d.By == "route" && d.Status > 0:
		verdict = fmt.Sprintf("Not sent: the proxy of the client responds with status %d", d.Status)
	case d.By == "route":
		verdict = "Not sent: the proxy of the client closes the connection"
	case !d.Allowed && d.HTTP:
		verdict = fmt.Sprintf("Denied with status %d", d.Status)
	case !d.Allowed:
		verdict = "Denied: the connection is closed"
	case !succeeds(d):
		verdict = fmt.Sprintf("Allowed, but %.3g %% of such requests fail at the proxy of the client", d.Client.Failing)
	case len(d.Asked) > 0:
		verdict = "Allowed, unless an external authorizer denies it"
	}
	v.say("%s\n", verdict)
	if d.HTTP {
		v.field("request", d.Method+" "+d.Path+", host "+cmp.Or(d.Host, "unknown"))
	}
	v.field("from", strings.TrimSuffix(cmp.Or(d.Identity, "a client without a certificate")+", "+d.Address, ", "))
	if d.Client != nil {
		v.hop(*d.Client)
	}
	if d.By != "" && d.By != "route" {
		at := fmt.Sprintf("%s, port %d", d.Proxy, d.Port)
		if d.Others > 0 {
			at += ", like " + count(d.Others, "other proxy", "other proxies")
		}
		v.field("at", at)
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
	var limits []string
	if h.Timeout != "" {
		limits = append(limits, "timeout "+h.Timeout)
	}
	if h.Retries > 0 {
		limits = append(limits, count(int(h.Retries), "retry", "retries"))
	}
	if len(limits) > 0 {
		v.field("", strings.Join(limits, ", "))
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
			v.field("", fmt.Sprintf("%d of %s, %s: %s", to.Healthy, count(to.All, "endpoint", "endpoints"), with, strings.Join(to.Endpoints, ", ")))
		}
		if to.Reason != "" {
			v.field("", to.Reason)
		}
	}
}

// field prints a name and its value.
func (v view) field(name, value string) {
	const indent = 11
	v.say("  %s%s%s\n", name, strings.Repeat(" ", max(1, indent-2-len(name))), columns.Shorten(oneLine(value), v.flags.width()-indent))
}

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
	v.say("  %s\n", columns.Shorten(oneLine(ruleText(c.Rule)), v.flags.width()-2))
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
	v.say("    %s\n", columns.Shorten(oneLine(text), v.flags.width()-4))
}
