// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// requestFlags are the flags of the request to explain.
type requestFlags struct {
	askFlags
	from, to, namespace, at          string
	method, path, host, address, sni string
	port                             uint16
	headers                          []string
	jwt, protocol                    string
	log, id                          string
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
none for a client without mutual TLS. WORKLOAD is a service or a proxy. A
gateway sends the request on: name it, or its service, with the --host of the request.

With --log, the request is the first line of an access log, in JSON or in the text
format of Istio or Envoy, or of outrigger tap -o json; other flags change it. Client
and workload are those with its addresses. If an address is not one of a single proxy,
or the line has none, as in Envoy's format, name them with --from and --to. The
proxies decide as they do now.

With --protocol, the client speaks another protocol than HTTP/1.1. The answer names the
timeout that applies, also that of a gRPC client in a --header grpc-timeout=5S, and how
long a listener waits for the first bytes of a client whose server speaks first.

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
	flags.StringVar(&f.protocol, "protocol", "", "what the client speaks: http/1.0, http/1.1, http/2, grpc, websocket, or, without requests, tcp or server-first (default: http/1.1)")
	completeValue(cmd, "protocol", func() []string {
		return []string{"http/1.0", "http/1.1", "http/2", "grpc", "websocket", "tcp", "server-first"}
	})
	flags.StringVar(&f.path, "path", "/", "path of the request, with its query")
	flags.StringVar(&f.host, "host", "", "host of the request (default: that of the service)")
	flags.Uint16Var(&f.port, "port", 0, "port of the service, or of the workload if --to is a proxy (default: the only one)")
	flags.StringArrayVar(&f.headers, "header", nil, "header of the request, as NAME=VALUE; several times for several")
	flags.StringVar(&f.jwt, "jwt", "", "token for the header Authorization, or a file with the token")
	flags.StringVar(&f.address, "address", "", "address of the client (default: that of the workload, if it is one)")
	flags.StringVar(&f.log, "log", "", "file whose first line is the request, as access logs and outrigger tap -o json have it, or - for standard input")
	flags.StringVar(&f.id, "id", "", "take the line of --log with this x-request-id, or the beginning of it, instead of the first one")
	flags.BoolVar(&f.certificates, "certificates", true, "ask the proxies of both sides for their certificates and failed connections, unless --at is given")
	flags.StringVar(&f.sni, "sni", "", "server name in the TLS handshake of the application or of a client without identity; none for no name")
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
		"from": within(f.from), "to": within(f.to), "method": f.method, "path": f.path, "host": f.host, "address": f.address, "sni": f.sni, "jwt": token, "protocol": f.protocol,
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
		if f.logged, err = readLogged(f.log, f.id, cmd.InOrStdin()); err != nil {
			return f.cfg.Exit(exitUsage, err)
		}
		f.logged.complete(f, cmd.Flags().Changed)
	}
	out, err := f.decision(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if out.TLS != nil && f.certificates && f.at == "" {
		f.addCertificates(cmd.Context(), out.TLS)
		f.addTroubles(cmd.Context(), &out)
	}
	return f.print(cmd, out)
}

// succeeds reports whether all requests like one are allowed.
func succeeds(d report.Decision) bool { return d.Allowed && failingAt(d) == nil }

// failingAt returns the decision whose request fails in part at the proxy that sends it; nil if there is none.
func failingAt(d report.Decision) *report.Decision {
	for one := &d; one != nil; one = one.Gateway {
		if one.Client != nil && one.Client.Failing > 0 {
			return one
		}
	}
	return nil
}

// explainedRequest is a request in the JSON and YAML output.
type explainedRequest struct {
	report.Decision
	// Findings are about objects that have to do with the request.
	Findings []analyze.Finding `json:"findings,omitempty"`
	// Troubles are those of the proxies of both sides with endpoints, now.
	Troubles []string `json:"troubles,omitempty"`
	// LastAllowed is nil if all requests are allowed.
	LastAllowed *lastWorked `json:"last_allowed,omitempty"`
}

// decision asks control planes. It prints which ones do not answer if none does.
func (f *requestFlags) decision(ctx context.Context, complaints io.Writer) (d explainedRequest, err error) {
	if (f.from == "" || f.to == "") && (f.logged == nil || !f.logged.located) {
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
	fields.Set("findings", "true")
	answers := ask[explainedRequest](ctx, addresses, question{path: "request", fields: fields, form: true}, f.timeout)
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
func (f *requestFlags) print(cmd *cobra.Command, d explainedRequest) error {
	v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}
	if f.forReaders() {
		shortenToHere(&d)
		if err := v.decision(d.Decision); err != nil {
			return err
		}
		v.related(d)
	}
	var err error
	d.LastAllowed, err = f.lastAllowed(cmd.Context(), d.Decision)
	switch {
	case err != nil:
		return err
	case !f.forReaders():
		err = f.write(v.out, d)
	default:
		if d.LastAllowed != nil {
			v.lastWorked(*d.LastAllowed)
		}
		if f.logged != nil {
			v.say("\n")
			v.field("logged", f.logged.result())
		}
	}
	if err == nil && !succeeds(d.Decision) {
		err = f.cfg.Exit(exitFailed, nil)
	}
	return err
}
