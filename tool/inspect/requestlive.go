// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// maxLive is how many troubles with endpoints are printed.
const maxLive = 20

// addTroubles asks the proxies of both sides about the connections to the endpoints of a request: the
// application of the workload may refuse them, and the proxy of the client may have ejected endpoints. What
// cannot be asked is said with the certificates.
func (f *requestFlags) addTroubles(ctx context.Context, d *explainedRequest) {
	server := []string{fmt.Sprintf("inbound|%d|", d.Port)}
	sides := []struct {
		of       *report.Certificate
		clusters []string
	}{{d.TLS.Server, server}}
	if d.Client != nil {
		var sent []string
		for _, to := range d.Client.Destinations {
			sent = append(sent, to.Cluster+"::")
		}
		sides = append(sides, struct {
			of       *report.Certificate
			clusters []string
		}{d.TLS.Client, sent})
	}
	for _, side := range sides {
		if side.of == nil || side.of.Address == "" || side.of.Error != "" && side.of.Error != noCertificate {
			continue
		}
		hosts, err := f.proxyOf(side.of).hosts(ctx, side.clusters, min(f.timeout, agentTimeout))
		if err != nil {
			continue // its certificate was asked for, too
		}
		for _, h := range hosts {
			if text := h.trouble(); text != "" && len(d.Troubles) < maxLive {
				d.Troubles = append(d.Troubles, side.of.Proxy+": "+text)
			}
		}
	}
}

// hostState is what an Envoy has counted at an endpoint.
type hostState struct {
	cluster, address string
	failed, total    uint64 // connections
	ejected          bool
}

// trouble says what is wrong with an endpoint; "" if nothing is.
func (h hostState) trouble() string {
	switch {
	case h.ejected:
		return "outlier detection has ejected " + h.address + " of " + h.cluster
	case h.failed > 0 && strings.HasPrefix(h.cluster, "inbound|"):
		return fmt.Sprintf("%d of %d connections to its application at %s failed: see whether it listens there", h.failed, h.total, h.address)
	case h.failed > 0:
		return fmt.Sprintf("%d of %d connections to %s failed", h.failed, h.total, h.address)
	}
	return ""
}

// hosts asks the Envoy of a proxy for its endpoints of clusters, which are named by how the lines of /clusters
// begin.
func (p proxy) hosts(ctx context.Context, clusters []string, timeout time.Duration) (out []hostState, err error) {
	admin, done, err := p.reach(ctx, adminPort, timeout)
	if err != nil {
		return nil, err
	}
	defer done()
	raw, err := askAdmin(ctx, admin, http.MethodGet, "/clusters", "", timeout)
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		line := lines.Text() // CLUSTER::ADDRESS::NAME::VALUE
		cluster, rest, ok := strings.Cut(line, "::")
		value := strings.LastIndex(rest, "::")
		if !ok || value < 0 || !slices.ContainsFunc(clusters, func(c string) bool { return strings.HasPrefix(line, c) }) {
			continue
		}
		name := strings.LastIndex(rest[:value], "::")
		if name < 0 {
			continue
		}
		i := len(out) - 1
		if i < 0 || out[i].cluster != cluster || out[i].address != rest[:name] { // the lines of an endpoint follow each other
			i++
			out = append(out, hostState{cluster: cluster, address: rest[:name]})
		}
		n, _ := strconv.ParseUint(rest[value+2:], 10, 64) // 0 for a text
		switch rest[name+2 : value] {
		case "cx_connect_fail":
			out[i].failed = n
		case "cx_total":
			out[i].total = n
		case "health_flags":
			out[i].ejected = strings.Contains(rest[value:], "failed_outlier_check")
		}
	}
	return out, nil
}
