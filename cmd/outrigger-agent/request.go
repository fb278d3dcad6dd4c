// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/agent"
	"github.com/outrigger-mesh/outrigger/agent/environ"
)

// requestTimeout limits a request including its answer, dialTimeout the connection
// to a local port.
const (
	requestTimeout = 60 * time.Second
	dialTimeout    = 5 * time.Second
)

// defaultStatusPort is the default status port of the agent.
const defaultStatusPort = 15020

// debugPorts returns the local ports that request may use: Envoy's admin port, the
// agent's debug port, the status port, and Envoy's readiness port, with their default
// numbers and with those of the configuration.
func debugPorts(env environ.Values, admin, status int) []int {
	ports := []int{15000, 15004, defaultStatusPort, 15021}
	for _, p := range []int{env.Debug.Port, admin, status, env.Envoy.StatusPort} {
		if p != 0 && !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	return ports
}

const requestLong = `request sends an HTTP request to a local port of the agent or of its Envoy and prints
the body of the response. The address is localhost, or OUTRIGGER_BIND_ADDRESS. The
debug port is always at a loopback address.

A response with a status above 399 is an error: the status and the beginning of the
body are printed to standard error, and nothing to standard output. A response that
takes more than 60 seconds is an error, too. POST drain of the status port, which is
answered once the proxy has drained, has no timeout.`

// requestName is the name of the command, requestWords the number of required arguments.
const (
	requestName  = "request"
	requestWords = 2
)

func newRequestCommand(p process) *cobra.Command {
	var port int
	cmd := &cobra.Command{
		Use:   requestName + " <METHOD> <PATH> [BODY]",
		Short: "Send an HTTP request to a local port of agent or Envoy",
		Long:  requestLong,
		Example: "  outrigger-agent request GET config_dump\n" +
			"  outrigger-agent request GET 'stats?filter=^cluster_manager'\n" +
			"  outrigger-agent request POST 'logging?level=debug'\n" +
			"  outrigger-agent request GET healthz/ready --debug-port 15020\n" +
			"  outrigger-agent request GET 'debug?resourceName=syncz' --debug-port 15004",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) < requestWords:
				return fmt.Errorf("request needs a method and a path, for example: request GET config_dump; there are %d arguments", len(args))
			case len(args) > 3:
				return fmt.Errorf("request takes a method, a path and a body; there are %d arguments: put the body in quotes", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			env, _ := environ.Read(p.environ) // errors of other variables do not concern this command
			admin, status := agent.Ports(cmd.Context(), agent.Config{Flags: agent.Flags{MeshConfig: defaultMeshConfig}, Environ: env})
			ports := debugPorts(env, admin, status)
			if !slices.Contains(ports, port) {
				return fmt.Errorf("--debug-port is %d; it must be one of %s", port, strings.Trim(fmt.Sprint(ports), "[]"))
			}
			host := env.BindAddress
			if host == "" {
				host = "localhost"
			} else if _, err := netip.ParseAddr(host); err != nil {
				return fmt.Errorf("environment variable OUTRIGGER_BIND_ADDRESS is %q; it must be an IP address", host)
			}
			if port == env.Debug.Port {
				host = agent.DebugHost(host)
			}
			body := ""
			if len(args) == 3 {
				body = args[2]
			}
			q := question{address: net.JoinHostPort(host, strconv.Itoa(port)), method: strings.ToUpper(args[0]), path: args[1], body: body}
			ctx := cmd.Context()
			if !drains(port, status, q) {
				limited, cancel := context.WithTimeout(ctx, requestTimeout)
				defer cancel()
				ctx = limited
			}
			return request(ctx, cmd.OutOrStdout(), q)
		},
	}
	cmd.Flags().IntVar(&port, "debug-port", 15000, "port to ask: 15000 (Envoy's admin), 15004 (debug: queries the control plane), 15020 (status) or 15021 (readiness), or one that the configuration of the proxy has instead")
	return cmd
}

// question is a request to a local port.
type question struct {
	address, method, path, body string
}

// drains reports whether a request is answered only after the proxy has drained. The
// agent limits how long that may take; the caller can stop sooner.
func drains(port, status int, q question) bool {
	path, _, _ := strings.Cut(strings.TrimPrefix(q.path, "/"), "?")
	return (port == defaultStatusPort || port == status) && q.method == http.MethodPost && path == "drain"
}

// request sends a request and writes the body of the answer to out.
func request(ctx context.Context, out io.Writer, q question) error {
	target := "http://" + q.address + "/" + strings.TrimPrefix(q.path, "/")
	req, err := http.NewRequestWithContext(ctx, q.method, target, strings.NewReader(q.body))
	if err != nil {
		return fmt.Errorf("request %s %q: %w", q.method, q.path, err)
	}
	// The proxies of the environment are not for local ports.
	dialer := &net.Dialer{Timeout: dialTimeout}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}, CheckRedirect: sameHost}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("request %s %s: %w", q.method, target, unanswered(err))
	}
	defer func() { _ = resp.Body.Close() }() // only read: nothing can be lost
	if resp.StatusCode >= http.StatusBadRequest {
		// If the body cannot be read, the status must suffice.
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason))
		if text := strings.TrimSpace(string(reason)); text != "" {
			return fmt.Errorf("request %s %s: the response is %s: %s", q.method, target, resp.Status, text)
		}
		return fmt.Errorf("request %s %s: the response is %s", q.method, target, resp.Status)
	}
	if _, err := io.Copy(out, resp.Body); err != nil {
		return fmt.Errorf("request %s %s: copy the response: %w", q.method, target, unanswered(err))
	}
	return nil
}

// unanswered converts a network error into one that says what to check.
func unanswered(err error) error {
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err // the caller adds the URL
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return fmt.Errorf("no connection within %s", dialTimeout)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no complete response within %s", requestTimeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nothing listens there: is the proxy running, and is --debug-port correct? (%w)", err)
	}
	return err
}

// sameHost accepts only redirects to the same host and port.
func sameHost(next *http.Request, before []*http.Request) error {
	switch {
	case next.URL.Host != before[0].URL.Host:
		return fmt.Errorf("the response redirects to another address, %s", next.URL.Redacted())
	case len(before) >= 5:
		return errors.New("the response is an endless chain of redirects")
	}
	return nil
}
