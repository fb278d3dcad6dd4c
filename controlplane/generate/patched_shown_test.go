// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
)

// shown is what shows that an EnvoyFilter of the corpus has its effect: an observation, its result
// without the filter, and that with it.
type shown struct {
	observe       observation
	without, with string
}

// The results of waiting for what does not come.
const nothing, open = "no answer", "open"

type observation func(t *testing.T, p *corpusProxy) string

// seen sends a request, "METHOD URL | Name: value | …", and returns what the fields say of it,
// separated by spaces: status, body, a header of the response or, after an @, one of the request that
// an application receives; @path is the path there. Instead of as headers, Bytes is sent as so many
// zeros in the body, and From as the address that the connection comes from.
func seen(request string, fields ...string) observation {
	return func(t *testing.T, p *corpusProxy) string { return p.seen(t, request, fields...) }
}

func (p *corpusProxy) seen(t *testing.T, request string, fields ...string) string {
	t.Helper()
	parts := strings.Split(request, " | ")
	method, target, _ := strings.Cut(parts[0], " ")
	header := headers(t, strings.Join(parts[1:], "; "))
	size, _ := strconv.Atoi(header.Get("Bytes")) // without it, 0
	from := header.Get("From")
	header.Del("Bytes")
	header.Del("From")
	id := fmt.Sprint(p.sent.Add(1), " of ", t.Name())
	header.Set(idHeader, id)
	ctx, cancel := context.WithTimeout(t.Context(), p.patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(make([]byte, size)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := p.client(from).Do(req)
	if err != nil {
		return nothing
	}
	defer func() { _ = resp.Body.Close() }() // it is read below
	var body []byte
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ = io.ReadAll(resp.Body) // a test sees missing data
	}
	var last arrival
	if got, _ := p.journal.of(id); len(got) > 0 {
		last = got[len(got)-1]
	}
	var out []string
	for _, f := range fields {
		switch name, arrives := strings.CutPrefix(f, "@"); {
		case f == "status":
			out = append(out, strconv.Itoa(resp.StatusCode))
		case f == "body":
			out = append(out, string(body))
		case f == "@path":
			out = append(out, last.path)
		case arrives:
			out = append(out, strings.Join(last.header.Values(name), ","))
		default:
			out = append(out, strings.Join(resp.Header.Values(name), ","))
		}
	}
	return strings.Join(out, " ")
}

// client returns a client of the proxy that opens a connection for each request, from an address.
func (p *corpusProxy) client(from string) *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(_ context.Context, _, to string) (net.Conn, error) {
			return p.dial(to, from)
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dial connects through the proxy of a sidecar to an address, where frontend is its application and
// another name any service, or to a gateway.
func (p *corpusProxy) dial(to, from string) (net.Conn, error) {
	at, dialer := p.address(), net.Dialer{Timeout: 2 * time.Minute}
	if strings.HasPrefix(from, "127.") {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	host, port, err := net.SplitHostPort(to)
	if err != nil {
		return nil, err
	}
	if p.proxy.Role == "router" {
		host = corpusGateway
	} else {
		switch {
		case host == "frontend":
			host = corpusSidecar
		case net.ParseIP(host) == nil:
			host = corpusServer
		}
		if host != corpusSidecar {
			at = corpusSidecar + ":15001"
		}
	}
	conn, err := dialer.Dial("tcp", at)
	if err == nil && (p.proxy.Role != "router" || from != "" && dialer.LocalAddr == nil) {
		_, err = fmt.Fprintf(conn, "PROXY TCP4 %s %s 50000 %s\r\n", cmp.Or(from, "10.1.2.3"), host, port)
	}
	return conn, err
}

// raw sends bytes over a connection, and returns the status of the answer, or why there is none.
func raw(conn net.Conn, request string) string {
	if _, err := io.WriteString(conn, request); err != nil {
		return "closed"
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "closed"
	}
	return strconv.Itoa(resp.StatusCode)
}

const plainRequest = "GET / HTTP/1.1\r\nHost: frontend\r\n\r\n"

// opened opens n connections to the application at once, and returns how many are served.
func opened(n int) observation {
	return func(t *testing.T, p *corpusProxy) string {
		served := 0
		for range n {
			conn, err := p.dial("frontend:8080", "")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }() // only after all are open
			if raw(conn, plainRequest) == "200" {
				served++
			}
		}
		return strconv.Itoa(served)
	}
}

// one returns whether one of n results of an observation is the wanted one.
func one(n int, of string, observe observation) observation {
	return func(t *testing.T, p *corpusProxy) string {
		for range n {
			if observe(t, p) == of {
				return "yes"
			}
		}
		return "no"
	}
}

// countedBy returns whether counters are above zero after an observation.
func countedBy(names string, observe observation) observation {
	return func(t *testing.T, p *corpusProxy) string {
		observe(t, p)
		return fmt.Sprint(p.counters(t, names) > 0)
	}
}

// held has n requests in the application at once, and returns whether some are refused.
func held(n int) observation {
	return func(t *testing.T, p *corpusProxy) string {
		id := fmt.Sprint(p.sent.Add(1), " of ", t.Name())
		refused := make(chan bool, n)
		client := p.client("")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range n {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://frontend:8080/", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{idHeader: {id}, waitHeader: {"1h"}}
			go func() {
				resp, err := client.Do(req)
				if err == nil {
					_ = resp.Body.Close() // its status is what counts
				}
				refused <- err == nil && resp.StatusCode == http.StatusServiceUnavailable
			}()
		}
		for {
			got, changed := p.journal.of(id)
			if len(got) == n {
				return "all are served"
			}
			select {
			case <-changed:
			case is := <-refused:
				return fmt.Sprintf("some are refused: %t", is)
			}
		}
	}
}

// keepalive returns the seconds, rounded up to tens, until the kernel probes an established
// connection whose local and remote address match, or none.
func keepalive(local, remote string, observe func(net.Conn) string) observation {
	return func(t *testing.T, p *corpusProxy) string {
		conn, err := p.dial("frontend:8080", "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // after the look at it
		if got := observe(conn); got != "200" {
			return got
		}
		table, err := os.ReadFile("/proc/thread-self/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if len(f) < 6 || f[3] != "01" || !strings.HasPrefix(f[1], procAddress(local)) || !strings.HasPrefix(f[2], procAddress(remote)) {
				continue
			}
			timer, when, _ := strings.Cut(f[5], ":")
			hundredths, err := strconv.ParseUint(when, 16, 64)
			if err != nil {
				t.Fatal(line)
			}
			if timer == "02" {
				return fmt.Sprint("in ", (hundredths+999)/1000*10, " s at most")
			}
		}
		return "none"
	}
}

// procAddress returns an address with or without a port as in /proc/net/tcp.
func procAddress(address string) string {
	host, port, ok := strings.Cut(address, ":")
	ip := net.ParseIP(host).To4()
	if ip == nil {
		return ""
	}
	out := fmt.Sprintf("%08X:", binary.NativeEndian.Uint32(ip))
	if ok {
		n, _ := strconv.Atoi(port) // a constant
		out += fmt.Sprintf("%04X", n)
	}
	return out
}

// recordingConn keeps what it reads.
type recordingConn struct {
	net.Conn
	read bytes.Buffer
}

func (c *recordingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Write(b[:n])
	return n, err
}

// handshake returns the status of an answer over mutual TLS for a name, and the seconds for which the
// session can be resumed.
func (p *corpusProxy) handshake(t *testing.T, name string) (status string, lifetime uint32) {
	t.Helper()
	conn, err := p.dial("frontend:8080", "")
	if err != nil {
		t.Fatal(err)
	}
	recording := &recordingConn{Conn: conn}
	client := tls.Client(recording, &tls.Config{
		Certificates: []tls.Certificate{p.pair}, ServerName: name, InsecureSkipVerify: true, //nolint:gosec // the server is not what is examined
		MaxVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	})
	defer func() { _ = client.Close() }() // the answer is all
	status = raw(client, plainRequest)
	// A record of a handshake with NewSessionTicket begins with the type 22, a version and its length,
	// then the type 4, a length and the lifetime.
	for b := recording.read.Bytes(); len(b) >= 13; {
		if n := int(binary.BigEndian.Uint16(b[3:])); b[0] == 22 && b[5] == 4 {
			return status, binary.BigEndian.Uint32(b[9:])
		} else if 5+n > len(b) {
			break
		} else {
			b = b[5+n:]
		}
	}
	return status, 0
}

// TestEnvoyFilterEffects shows the effect of each EnvoyFilter of the corpus through a real Envoy: the
// outcome of a request, or of another observation, differs with the filter and without it.
func TestEnvoyFilterEffects(t *testing.T) {
	t.Parallel()
	all, servers := corpus(t), newCorpusServers(t)
	ofBootstrap := all["bootstrap.yaml"]
	sidecar, gateway := shownBySidecar(), shownByGateway()
	if len(sidecar)+len(gateway)+1 != len(all) {
		t.Errorf("the effects of %d EnvoyFilters are shown, of %d", len(sidecar)+len(gateway)+1, len(all))
	}
	for name, cases := range map[string]map[string]shown{"sidecar": sidecar, "gateway": gateway} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *corpusProxy
			for _, one := range slices.Sorted(maps.Keys(cases)) {
				c, ok := all[one+".yaml"]
				if !ok || c.name != "patch-"+name {
					t.Fatalf("%s is no EnvoyFilter for a %s", one, name)
				}
				if p == nil && name == "sidecar" {
					p = startCorpus(t, servers, c.testCase, "--config-yaml", ofBootstrap.bootstrap(t))
				} else if p == nil {
					p = startCorpus(t, servers, c.testCase)
				}
				t.Run(one, func(t *testing.T) { p.show(t, c, cases[one]) })
			}
			// A bootstrap is read once, so one of the two has the patch.
			if tagged := strings.Contains(p.ask(t, "/stats/prometheus"), `team="shop"`); tagged != (name == "sidecar") {
				t.Errorf("metrics have the tag of the bootstrap: %t", tagged)
			}
			if name == "sidecar" {
				servers.receives(t, "envoy.")
			}
		})
	}
}

// receives waits until statsd gets a metric.
func (s *corpusServers) receives(t *testing.T, prefix string) {
	t.Helper()
	packet := make([]byte, 1<<16)
	if err := s.metrics.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := s.metrics.ReadFrom(packet); err != nil || !strings.HasPrefix(string(packet[:n]), prefix) {
		t.Errorf("statsd receives %q: %v", packet[:n], err)
	}
}

// bootstrap returns the JSON that Envoy merges over its bootstrap.
func (c corpusCase) bootstrap(t *testing.T) string {
	t.Helper()
	mesh := snapshot.Build(nil, inputOf(append(slices.Clone(c.objects), c.filter), c.mesh), model.Change{All: true})
	return jsonOf(t, New(Config{}).Generate(mesh, c.proxy, xds.TypeBootstrap), "")
}

func (p *corpusProxy) show(t *testing.T, c corpusCase, s shown) {
	if s.without == s.with {
		t.Fatal("it shows nothing")
	}
	p.patience = 2 * time.Minute
	if s.without == nothing || s.without == open {
		p.patience = 250 * time.Millisecond
	}
	p.write(t, p.configuration(t, nil))
	p.becomes(t, "without the filter", s.without, s)
	p.patience = 2 * time.Minute
	p.write(t, p.configuration(t, c.filter))
	p.becomes(t, "with the filter", s.with, s)
}

// becomes fails unless an observation has a result soon.
func (p *corpusProxy) becomes(t *testing.T, when, want string, s shown) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got := s.observe(t, p)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %q, want %q", when, got, want)
		}
	}
}
