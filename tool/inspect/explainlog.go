// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// logged is a line of an access log, or of outrigger tap: a request, and what happened to it.
type logged struct {
	recorded
	Code     *float64 `json:"response_code"`
	Flags    string   `json:"response_flags"`
	Protocol string   `json:"protocol"`

	tapped  tapped // without a direction for a line of an access log
	located bool   // the addresses say which workloads these are
}

// readLogged reads a line of a file, or of standard input if its name is -: the first one, or the first one
// whose request id begins with id.
func readLogged(name, id string, stdin io.Reader) (*logged, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // read-only: closing cannot lose data
		stdin = file
	}
	lines := bufio.NewScanner(stdin)
	lines.Buffer(make([]byte, 4<<10), maxRecord)
	for lines.Scan() {
		out, err := parseLogged(lines.Bytes())
		switch {
		case id != "" && (err != nil || !strings.HasPrefix(out.ID, id)):
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: the first line is not one of an access log: %w", name, err)
		}
		return out, nil
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if id != "" {
		return nil, fmt.Errorf("%s: no line has a request id that begins with %q", name, id)
	}
	return nil, fmt.Errorf("%s: it has no line: write one of an access log, or of outrigger tap -o json", name)
}

// parseLogged parses a line in JSON, or in the text format of Istio or Envoy.
func parseLogged(line []byte) (*logged, error) {
	out := &logged{}
	if !strings.HasPrefix(strings.TrimSpace(string(line)), "{") {
		return out, out.parseText(string(line))
	}
	if err := json.Unmarshal(line, out); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	if err := json.Unmarshal(line, &out.tapped); err != nil {
		out.tapped = tapped{} // the fields of another log have its names
	}
	if t := out.tapped; t.Direction != "" {
		code := float64(t.Status)
		out.Code, out.Flags = &code, t.Flags
		if strings.Contains(t.Proxy, ":") {
			out.tapped.Proxy = "" // only the address of its agent is known
		}
	}
	if out.Local == "" && out.tapped.Direction == "" {
		return nil, errors.New("it has no downstream_local_address: add the field to the format of the log")
	}
	return out, nil
}

// Numbers of the parts of lines in Envoy's text format, and in that of Istio, which has more of them. Parts
// of Istio's format after the code of the response are counted from the end: the details of a connection may
// have spaces.
const (
	partsOfEnvoy = 13
	partsOfIstio = 22
)

// parseText parses a line in a text format.
func (l *logged) parseText(line string) error {
	const formats = "write it in JSON, or in the text format of Istio or Envoy"
	begin := strings.IndexByte(line, '[') // kubectl and others may write something before
	if begin < 0 {
		return errors.New("it has no time in brackets: " + formats)
	}
	parts := partsOf(line[begin:])
	if len(parts) < partsOfEnvoy {
		return fmt.Errorf("it has %d parts, and the shortest format has %d: %s", len(parts), partsOfEnvoy, formats)
	}
	from := len(parts) - partsOfIstio
	if from >= 0 {
		end := parts[len(parts)-9:] // x-request-id and the following
		l.For, l.Agent, l.ID, l.Host = parts[len(parts)-11], parts[len(parts)-10], end[0], end[1]
		l.Upstream, l.Local, l.Remote, l.SNI = end[3], end[5], end[6], end[7]
		l.Details = parts[4]
	} else {
		end := parts[len(parts)-5:]
		l.For, l.Agent, l.ID, l.Host = end[0], end[1], end[2], end[3]
	}
	method, rest, _ := strings.Cut(parts[1], " ")
	i := strings.LastIndexByte(rest, ' ') // before the protocol
	if i < 0 || method == "" {
		return fmt.Errorf("%q is not a method, a path and a protocol: %s", parts[1], formats)
	}
	l.Method, l.Path, l.Protocol = method, rest[:i], rest[i+1:]
	code, err := strconv.ParseFloat(parts[2], 64)
	if err != nil {
		return fmt.Errorf("%q is not the code of a response: %s", parts[2], formats)
	}
	l.Code, l.Flags = &code, parts[3]
	if from >= 0 {
		if _, err := netip.ParseAddrPort(l.Local); err != nil {
			return fmt.Errorf("%q is not the downstream_local_address: %s", l.Local, formats)
		}
	}
	for _, field := range []*string{&l.Method, &l.Path, &l.Host, &l.For, &l.Agent, &l.ID, &l.Upstream, &l.SNI, &l.Details} {
		if *field == "-" {
			*field = ""
		}
	}
	return nil
}

// partsOf returns the words of a line. Brackets at its beginning, and quotes, keep words together.
func partsOf(line string) (out []string) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimLeft(line, " ") {
		end := " "
		switch {
		case line[0] == '[' && len(out) == 0:
			line, end = line[1:], "]"
		case line[0] == '"':
			line, end = line[1:], `"`
		}
		one, rest, _ := strings.Cut(line, end)
		out, line = append(out, one), rest
	}
	return out
}

// complete sets the flags that are not set: given reports whether one is.
func (l *logged) complete(f *requestFlags, given func(flag string) bool) {
	set := func(flag string, to *string, value string) {
		if value != "" && value != "-" && !given(flag) {
			*to = value
		}
	}
	set("method", &f.method, l.Method)
	set("path", &f.path, l.Path)
	if l.Protocol == "HTTP/1.0" { // the other versions are decided alike
		set("protocol", &f.protocol, "http/1.0")
	}
	set("host", &f.host, l.Host)
	set("sni", &f.sni, l.SNI)
	port := func(text string) {
		if number, err := strconv.ParseUint(text, 10, 16); err == nil && !given("port") {
			f.port = uint16(number)
		}
	}
	if remote, err := netip.ParseAddrPort(l.Remote); err == nil {
		set("address", &f.address, remote.Addr().Unmap().String())
	}
	to, direction := l.tapped.Destination, l.tapped.Direction
	if outbound, rest, _ := strings.Cut(l.Upstream, "|"); outbound == "outbound" { // outbound|PORT|SUBSET|HOST
		number, rest, _ := strings.Cut(rest, "|")
		_, host, _ := strings.Cut(rest, "|")
		to, direction = net.JoinHostPort(host, number), outbound
	}
	switch {
	case direction == "outbound":
		host, number, _ := net.SplitHostPort(to) // without one, the workload is missing
		set("from", &f.from, l.tapped.Proxy)
		set("to", &f.to, host)
		port(number)
		f.address = "" // that of the application, whose proxy has written the line
	case direction == "inbound":
		port(portOf(l.Local))
		set("from", &f.from, cmp.Or(l.tapped.Source, "none"))
		set("to", &f.to, l.tapped.Proxy)
	case len(l.Peer) > 0:
		identity := ""
		_ = json.Unmarshal(l.Peer, &identity) // null has none
		set("from", &f.from, cmp.Or(identity, "none"))
	case l.Local == "": // Envoy's text format
		host, number, err := net.SplitHostPort(l.Host)
		if err != nil {
			host = l.Host
		}
		set("to", &f.to, host)
		port(number)
	}
	l.located = l.Local != "" && !(given("from") && given("to"))
	for name, value := range map[string]string{"x-forwarded-for": l.For, "user-agent": l.Agent, "x-request-id": l.ID} {
		if value != "" && value != "-" {
			f.headers = append(f.headers, name+"="+value)
		}
	}
	for name, value := range l.Headers {
		if value != nil {
			f.headers = append(f.headers, name+"="+*value)
		}
	}
	slices.Sort(f.headers)
}

// portOf returns the port of an address.
func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // "" without one
	return port
}

// fields adds what no flag can say.
func (l *logged) fields(to url.Values) {
	if strings.HasPrefix(l.Details, report.RefusedToken) {
		to.Set("refused", "true")
	}
	if len(l.Claims) > 0 && string(l.Claims) != "null" {
		to.Set("claims", string(l.Claims))
	}
	if l.located {
		to.Set("local", l.Local)
		to.Set("remote", l.Remote)
	}
}

// flagTexts says what the flags of responses mean, and where the cause is.
func flagTexts() map[string]string {
	return map[string]string{
		"DC":    "the client closed the connection before the response",
		"DI":    "a fault delayed the request",
		"DPE":   "the client does not speak HTTP as the port expects it, as with TLS at a port for plaintext",
		"DT":    "the request or the connection reached its maximum duration",
		"FI":    "a fault aborted the request",
		"LH":    "the local application is unhealthy",
		"LR":    "the proxy reset the connection",
		"NC":    "the proxy does not have the cluster of the route",
		"NR":    "no route, or no filter chain, is for the request",
		"OM":    "the proxy is overloaded",
		"RL":    "a limit of requests refused it",
		"RLSE":  "the service for limits of requests failed",
		"SI":    "the stream was idle for too long",
		"UAEX":  "an authorizer refused it",
		"UC":    "the workload closed the connection; if at once, see how both sides use TLS, and whether the application reads HTTP",
		"UF":    "the connection to the workload failed; see whether the application listens at that address and port, and how both sides use TLS",
		"UH":    "no endpoint is healthy; outlier detection may have ejected them",
		"UMSDR": "it reached its maximum time",
		"UO":    "a limit of connections or requests is reached; see connectionPool in the DestinationRule",
		"UPE":   "the response is not HTTP as the proxy expects it; see the protocol of the port",
		"UR":    "the workload reset the stream",
		"URX":   "all retries, or connections, failed",
		"UT":    "the workload did not respond within the timeout of the route",
	}
}

// result says what happened to the request.
func (l *logged) result() string {
	out := "no response"
	if l.Code != nil && *l.Code > 0 {
		out = fmt.Sprintf("status %.0f", *l.Code)
	}
	if l.Flags == "" || l.Flags == "-" {
		return out
	}
	for flag := range strings.SplitSeq(l.Flags, ",") {
		out += ", " + strings.TrimSuffix("flag "+flag+": "+flagTexts()[flag], ": ")
	}
	return out
}
