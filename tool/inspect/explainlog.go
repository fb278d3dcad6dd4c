// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// logged is a line of an access log: a request, and what happened to it.
type logged struct {
	recorded
	Code  *float64 `json:"response_code"`
	Flags string   `json:"response_flags"`
}

// readLogged reads the first line of a file, or of standard input if its name is -.
func readLogged(name string, stdin io.Reader) (*logged, error) {
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
	out := &logged{}
	if lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), out); err != nil {
			return nil, fmt.Errorf("%s: the first line is not JSON of an access log: %w", name, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if out.Local == "" {
		return nil, fmt.Errorf("%s: the first line has no downstream_local_address: write a line of an access log in JSON, or of outrigger tap -o json", name)
	}
	return out, nil
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
	set("host", &f.host, l.Host)
	set("sni", &f.sni, l.SNI)
	if remote, err := netip.ParseAddrPort(l.Remote); err == nil {
		set("address", &f.address, remote.Addr().Unmap().String())
	}
	if direction, rest, _ := strings.Cut(l.Upstream, "|"); direction == "outbound" { // outbound|PORT|SUBSET|HOST
		port, rest, _ := strings.Cut(rest, "|")
		_, host, _ := strings.Cut(rest, "|")
		set("to", &f.to, host)
		if number, err := strconv.ParseUint(port, 10, 16); err == nil && !given("port") {
			f.port = uint16(number)
		}
		f.address = "" // that of the application, whose proxy has written the line
	} else if len(l.Peer) > 0 {
		identity := ""
		_ = json.Unmarshal(l.Peer, &identity) // null has none
		set("from", &f.from, cmp.Or(identity, "none"))
	}
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

// fields adds what no flag can say.
func (l *logged) fields(to url.Values) {
	if strings.HasPrefix(l.Details, report.RefusedToken) {
		to.Set("refused", "true")
	}
	if len(l.Claims) > 0 && string(l.Claims) != "null" {
		to.Set("claims", string(l.Claims))
	}
}

// result says what happened to the request.
func (l *logged) result() string {
	out := "no response"
	if l.Code != nil && *l.Code > 0 {
		out = fmt.Sprintf("status %.0f", *l.Code)
	}
	if l.Flags != "" && l.Flags != "-" {
		out += ", flags " + l.Flags
	}
	return out
}
