// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	// adminTimeout is the upper limit for a request to the admin port, even if its context allows
	// more.
	adminTimeout = 3 * time.Second
	// adminMaxBody is the maximum number of bytes read from a response. The filters used in this
	// package select a few lines; ActiveConnections selects one or two per listener.
	adminMaxBody = 4 << 20
)

// Admin is a client of Envoy's admin port. It is safe for concurrent use.
type Admin struct {
	address string
	client  *http.Client
}

// NewAdmin returns a client of the admin port at address, a host and a port.
func NewAdmin(address string) *Admin {
	return &Admin{
		address: address,
		client: &http.Client{
			// Ignore the proxy settings of the environment: the port is on this machine. Do not
			// keep connections alive: requests are rare, and Envoy would count an idle connection.
			Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true, DisableCompression: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       adminTimeout,
		},
	}
}

// Address returns the host and port of the admin port.
func (a *Admin) Address() string { return a.address }

// Stats returns the counters and gauges that Envoy has used and whose names match filter, a regular expression.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	body, err := a.do(ctx, http.MethodGet, "/stats", "usedonly&filter="+url.QueryEscape(filter))
	if err != nil {
		return nil, err
	}
	return parseStats(body), nil
}

// DrainListeners asks Envoy to drain its listeners, or only the inbound ones if inboundOnly is set.
// Envoy keeps serving and does not exit; the agent decides when to stop it.
func (a *Admin) DrainListeners(ctx context.Context, inboundOnly bool) error {
	query := "graceful&skip_exit"
	if inboundOnly {
		query = "inboundonly&" + query
	}
	_, err := a.do(ctx, http.MethodPost, "/drain_listeners", query)
	return err
}

// SetRuntime sets keys of Envoy's runtime to a value, or removes them if it is empty.
func (a *Admin) SetRuntime(ctx context.Context, value string, keys ...string) error {
	fields := url.Values{}
	for _, key := range keys {
		fields.Set(key, value)
	}
	_, err := a.do(ctx, http.MethodPost, "/runtime_modify", fields.Encode())
	return err
}

// ActiveConnections returns the number of open connections on Envoy's listeners. It excludes the
// admin port and listeners on ignorePorts, such as the readiness and metrics ports, whose
// connections probes and scrapers keep open.
func (a *Admin) ActiveConnections(ctx context.Context, ignorePorts ...int) (uint64, error) {
	stats, err := a.Stats(ctx, `^listener\..*downstream_cx_active$`)
	if err != nil {
		return 0, err
	}
	return sumConnections(stats, ignorePorts), nil
}

func sumConnections(stats map[string]uint64, ignorePorts []int) uint64 {
	var sum uint64
	for name, value := range stats {
		listener, found := strings.CutPrefix(name, "listener.")
		listener, active := strings.CutSuffix(listener, ".downstream_cx_active")
		if !found || !active || listener == "admin" || strings.HasPrefix(listener, "admin.") {
			continue
		}
		// Entries with worker_N repeat the listener's count for each thread.
		if strings.Contains(listener, ".worker_") || ignored(listener, ignorePorts) {
			continue
		}
		sum += value
	}
	return sum
}

// ignored reports whether the listener name used in statistics, such as "0.0.0.0_15021" or
// "[__]_15021", ends in one of the ports.
func ignored(listener string, ports []int) bool {
	for _, port := range ports {
		if strings.HasSuffix(listener, "_"+strconv.Itoa(port)) {
			return true
		}
	}
	return false
}

// ask sends a request and returns a response with status 200, whose body the caller must close.
func (a *Admin) ask(ctx context.Context, method, path, query string) (*http.Response, error) {
	target := url.URL{Scheme: "http", Host: a.address, Path: path, RawQuery: query}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask envoy's admin port: %w", err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask envoy's admin port: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()                       // read-only: closing cannot lose data
		body, _ := io.ReadAll(io.LimitReader(resp.Body, adminMaxBody)) // a part is better than nothing
		return nil, fmt.Errorf("envoy's admin port at %s answered %s to %s: %s", a.address, resp.Status, path, clip.Text(strings.TrimSpace(string(body)), maxOutput))
	}
	return resp, nil
}

func (a *Admin) do(ctx context.Context, method, path, query string) (string, error) {
	resp, err := a.ask(ctx, method, path, query)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	body, err := io.ReadAll(io.LimitReader(resp.Body, adminMaxBody))
	if err != nil {
		return "", fmt.Errorf("read the answer of envoy's admin port to %s: %w", path, err)
	}
	return string(body), nil
}

// parseStats parses lines of the form "name: number" and skips all others, such as histograms and
// text values.
func parseStats(body string) map[string]uint64 {
	stats := map[string]uint64{}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		// Names may contain colons, so split at the last one.
		i := strings.LastIndex(lines.Text(), ": ")
		if i < 0 {
			continue
		}
		value, err := strconv.ParseUint(lines.Text()[i+2:], 10, 64)
		if err != nil {
			continue
		}
		stats[lines.Text()[:i]] = value
	}
	return stats
}
