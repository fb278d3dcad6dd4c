// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

const (
	// reachTimeout limits each step of the way to the control plane.
	reachTimeout = 10 * time.Second
	// leeway is the maximum difference of clocks that the control plane accepts.
	leeway = time.Minute
)

// ports are what agent and Envoy listen on.
var ports = []int{15000, 15001, 15004, 15006, 15020, 15021, 15053, 15090}

// check returns an error if this machine cannot join, after it has listed all problems.
func (h *host) check(ctx context.Context, t *join.Token) error {
	problems := 0
	for _, c := range []struct {
		what string
		find func(context.Context, *join.Token) (string, error)
	}{
		{"user", h.checkUser},
		{"package", h.checkPackage},
		{"joined before", h.checkJoined},
		{"clock", checkClock},
		{"ports", checkPorts},
		{"kernel", checkKernel},
		{"control plane", checkReach},
	} {
		found, err := c.find(ctx, t)
		if err != nil {
			problems++
			h.say("%-14s PROBLEM: %v", c.what, err)
			continue
		}
		h.say("%-14s %s", c.what, found)
	}
	switch {
	case problems == 1:
		return errors.New("this machine cannot join: correct the problem above; the token stays valid")
	case problems > 1:
		return fmt.Errorf("this machine cannot join: correct the %d problems above; the token stays valid", problems)
	}
	return nil
}

func (h *host) checkUser(context.Context, *join.Token) (string, error) {
	if h.uid != 0 {
		return "", errors.New("joining writes to /etc and starts a service: use sudo")
	}
	return "root", nil
}

func (h *host) checkPackage(context.Context, *join.Token) (string, error) {
	if _, err := os.Stat(h.path(unitFile)); err != nil {
		return "", fmt.Errorf("%s is missing: install the package outrigger-agent", h.path(unitFile))
	}
	if _, _, err := h.proxy(); err != nil {
		return "", err
	}
	return "outrigger-agent is installed", nil
}

func (h *host) checkJoined(context.Context, *join.Token) (string, error) {
	path, ours := h.joined()
	switch {
	case path == "":
		return "no", nil
	case ours:
		return "", fmt.Errorf("%s exists: run outrigger leave first", path)
	}
	return "", fmt.Errorf("%s exists, and outrigger join did not write it: stop its service, and move the file away", path)
}

func checkClock(_ context.Context, t *join.Token) (string, error) {
	now := time.Now()
	text := now.UTC().Format(time.RFC3339)
	switch {
	case now.Before(t.Issued.Add(-leeway)):
		return "", fmt.Errorf("it is %s here, and the token was made at %s: set the clock", text, t.Issued.UTC().Format(time.RFC3339))
	case now.After(t.Expires):
		return "", fmt.Errorf("it is %s here, and the token expired at %s: create another one, or set the clock", text, t.Expires.UTC().Format(time.RFC3339))
	}
	return text, nil
}

func checkPorts(ctx context.Context, _ *join.Token) (string, error) {
	var used []string
	var listen net.ListenConfig
	for _, port := range ports {
		l, err := listen.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
		if err != nil {
			used = append(used, strconv.Itoa(port))
			continue
		}
		_ = l.Close() // nobody has connected
	}
	if len(used) > 0 {
		return "", fmt.Errorf("in use: %s: stop the programs that listen there (ss --listening --tcp --processes)", strings.Join(used, ", "))
	}
	return "15000 to 15090 are free", nil
}

func checkKernel(context.Context, *join.Token) (string, error) {
	captured, err := capture.Captured("")
	switch {
	case err != nil:
		return "", fmt.Errorf("nftables cannot be used: %w; load the module nf_tables", err)
	case captured:
		return "", errors.New("connections are redirected by the rules of another agent: stop it, and run outrigger-agent istio-clean-iptables")
	}
	return "has nftables", nil
}

// checkReach looks the control plane up, connects, and makes a TLS handshake that trusts only the
// roots in the token. It sends no secret.
func checkReach(ctx context.Context, t *join.Token) (string, error) {
	host, port, err := net.SplitHostPort(t.Address)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*reachTimeout)
	defer cancel()
	addresses := []string{host}
	if net.ParseIP(host) == nil {
		if addresses, err = net.DefaultResolver.LookupHost(ctx, host); err != nil {
			return "", fmt.Errorf("%s cannot be looked up: %w: add it to the DNS or to /etc/hosts", host, err)
		}
	}
	dialer := net.Dialer{Timeout: reachTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return "", fmt.Errorf("%s (%s) does not answer: %w: check that it runs, and the firewalls", t.Address, strings.Join(addresses, ", "), err)
	}
	defer func() { _ = conn.Close() }() // only the handshake counts
	if err := conn.SetDeadline(time.Now().Add(reachTimeout)); err != nil {
		return "", err
	}
	secure := tls.Client(conn, &tls.Config{RootCAs: roots(t), ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", fmt.Errorf("port %s of %s is not the control plane that made the token: %w", port, host, err)
	}
	return t.Address + " answers, below the roots in the token", nil
}
