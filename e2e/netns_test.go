// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// machine is a network namespace with one interface on a network of the test.
type machine struct {
	*netlab.Machine
	name     string
	ip4, ip6 netip.Addr
}

// machines creates network namespaces that are connected by a bridge, which is in another
// namespace. They are removed at the end of the test.
func machines(t *testing.T, names ...string) []*machine {
	t.Helper()
	all, err := netlab.New(names...)
	if errors.Is(err, netlab.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlab.Close(all) })
	out := make([]*machine, len(all))
	for i, m := range all {
		out[i] = &machine{m, m.Name, m.IP4, m.IP6}
	}
	return out
}

// start starts a program in the namespace.
func (m *machine) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := m.Do(cmd.Start); err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
}

// capture redirects the traffic of the machine to its Envoy.
func (m *machine) capture(t *testing.T, flags ...string) {
	t.Helper()
	if err := m.Capture(filepath.Join(repository(t), "bin", "outrigger-agent"), flags...); err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
}

// client returns a client in the namespace that uses a new connection for each request.
func (m *machine) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: m.Dial, DisableKeepAlives: true}}
}

// listen listens in the namespace until the test ends.
func (m *machine) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := m.Listen("tcp", address)
	if err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	t.Cleanup(func() { _ = l.Close() }) // a server may have closed it
	return l
}

// serve serves requests in the namespace until the test ends.
func (m *machine) serve(t *testing.T, address string, h http.Handler) {
	t.Helper()
	s := &http.Server{Handler: h}
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	l := m.listen(t, address)
	go func() { _ = s.Serve(l) }() // it ends with the listener
	t.Cleanup(func() { _ = s.Close() })
}

// talk sends a greeting and the client's address on each connection, and then echoes its input.
func (m *machine) talk(t *testing.T, address, greeting string) {
	t.Helper()
	l := m.listen(t, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }() // the peer reports it
				host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
				_, _ = io.WriteString(c, greeting+host+"\n") // as above
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}
