// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	callWeb      = "GET http://web.default.svc.cluster.local/"
	callFrontend = "GET http://frontend:8080/"
	callGRPC     = "POST http://frontend:9090/grpc.health.v1.Health/Check | Content-Type: application/grpc | Bytes: 5"
)

// shownBySidecar are the EnvoyFilters of the corpus for sidecars.
func shownBySidecar() map[string]shown {
	return map[string]shown{
		"adaptive-concurrency": {held(4), "all are served", "some are refused: true"},
		"buffer":               {seen("POST http://frontend:8080/ | Bytes: 5001", "status"), "200", "413"},
		"cluster-all": {
			countedBy("cluster.outbound.80..web.*upstream_flow_control_backed_up_total", seen("POST http://web.default.svc.cluster.local/ | Bytes: 100000", "status")),
			"false", "true",
		},
		"cluster-http-options": {
			partOf("(?i)x-team: a", seen("GET http://raw.default.svc.cluster.local/ | X-Team: a", "body")), "x-team: a", "X-Team: a",
		},
		"cluster-inbound": {
			keepalive("127.0.0.6", corpusSidecar+":8080", func(c net.Conn) string { return raw(c, plainRequest) }), "none", "in 40 s at most",
		},
		"cluster-panic":         {one(12, "sick", seen("GET http://many.default.svc.cluster.local/", "X-Backend")), "yes", "no"},
		"cluster-timeout":       {seen("GET http://slow.default.svc.cluster.local/", "status"), nothing, "503"},
		"connection-limit":      {opened(13), "13", "12"},
		"extension-config":      {seen(callFrontend, "status", "X-Discovered"), "200 ", "200 yes"},
		"fault-by-hand":         {seen(callWeb+" | X-Envoy-Fault-Abort-Request: 418", "status"), "200", "418"},
		"grpc-bridge":           {seen(callGRPC, "status", "Grpc-Status"), "200 ", "200 0"},
		"hcm-http10":            {http10, "426", "200"},
		"hcm-server":            {seen(callFrontend, "status", "Server"), "200 istio-envoy", "200 "},
		"header-to-metadata":    {seen(callWeb+" | X-Version: v2", "status", "@X-Seen"), "200 ", "200 v2"},
		"health-check":          {seen("GET http://frontend:8080/alive", "status", "X-Backend"), "200 frontend", "200 "},
		"listener-buffer":       {countedBy("cluster.inbound.*upstream_flow_control_paused_reading_total", seen("GET http://frontend:8080/big", "status")), "false", "true"},
		"local-rate-limit":      {one(21, "429 true", seen(callFrontend, "status", "X-Limited")), "no", "yes"},
		"lua-request-header":    {seen(callWeb, "@X-Team"), "", "shop"},
		"lua-response-header":   {seen(callFrontend, "status", "X-Powered-By"), "200 go", "200 "},
		"old-names":             {seen(callFrontend, "X-Late"), "", "yes"},
		"own-listener":          {echo, "refused", "echo"},
		"proxy-version":         {statsOf(`^cluster\.matched\.upstream_cx_total`), "no", "yes"},
		"rbac-by-hand":          {seen(callFrontend+" | From: "+corpusOffice, "status"), "200", "403"},
		"remove-cors":           {seen(callWeb+" | Origin: https://shop.example.com", "status", "Access-Control-Allow-Origin"), "200 https://shop.example.com", "200 "},
		"replace-filter":        {after(seen(callGRPC), statsOf(`\.grpc\..*upstream_rq_time`)), "no", "yes"},
		"route-inbound-timeout": {seen(callFrontend+" | X-Test-Wait: 1h", "status"), nothing, "504"},
		"routes-headers":        {seen(callWeb+" | X-Debug: 1", "status", "@X-Debug"), "200 1", "200 "},
		"sni":                   {session("closed.example.com"), "200", "closed"},
		"stats-class":           {seen(callWeb, "X-Class"), "", "yes"},
		"tcp-idle":              {idles, open, "closed"},
		"tcp-rate-limit":        {partOf("^4$", opened(4)), "4", ""},
		"tls-sessions":          {resumed, "7200", "601"},
		"typed-struct":          {seen("POST http://frontend:8080/ | Bytes: 78", "status"), "200", "413"},
		"vhost-add":             {seen("GET http://blocked.example.com/", "status"), "503", "451"},
		"local-rate-limit-of-a-route": {
			one(8, "429", seen(callWeb, "status")), "no", "yes",
		},
	}
}

// shownByGateway are the EnvoyFilters of the corpus for gateways.
func shownByGateway() map[string]shown {
	const shop, more = "GET http://shop.example.com/", "GET http://more.example.com/"
	return map[string]shown{
		"cluster-dns":        {partOf(`(127\.0\.0\.1|\[::1\]):9082`, clusterHosts), "127.0.0.1:9082", "[::1]:9082"},
		"compression":        {seen("GET http://shop.example.com/big | Accept-Encoding: gzip", "status", "Content-Encoding"), "200 ", "200 gzip"},
		"csrf":               {seen("POST http://shop.example.com/ | Origin: https://evil.example.com", "status"), "200", "403"},
		"ext-authz":          {seen("GET http://shop.example.com/refused", "status"), "200", "403"},
		"global-rate-limit":  {seen(shop+"limited", "status"), "200", "429"},
		"grpc-web":           {seen("POST http://more.example.com/grpc.health.v1.Health/Check | Content-Type: application/grpc-web+proto | Bytes: 5", "status"), "415", "200"},
		"hcm-access-log":     {after(seen(shop, "status"), logged("own 200")), "no", "yes"},
		"hcm-headers":        {several(seen(shop+" | X-Long: "+strings.Repeat("a", 70<<10), "status"), seen(shop+strings.Repeat(" | X-Many: a", 150), "status")), "431 431", "200 200"},
		"hcm-local-reply":    {partOf("come back later", seen(more+"gone", "body")), "", "come back later"},
		"hcm-paths":          {several(seen(shop+"/a", "@path"), seen(shop+"a%2fb", "status"), seen(shop+" | X_under: a", "status")), "//a 200 200", "/a 307 400"},
		"hcm-upgrade":        {seen(shop+" | Connection: upgrade | Upgrade: tailscale-control-protocol", "status"), "403", "101"},
		"hcm-wrapped-false":  {seen(shop+" | X-Forwarded-For: 192.0.2.1 | From: "+corpusOffice, "@X-Forwarded-For"), "192.0.2.1," + corpusOffice, "192.0.2.1"},
		"hcm-xff":            {seen(shop+" | X-Forwarded-For: 192.0.2.1, 192.0.2.2, 192.0.2.3 | From: "+corpusOffice, "@X-Envoy-External-Address"), corpusOffice, "192.0.2.2"},
		"ip-tagging":         {seen(shop+" | From: "+corpusOffice, "status", "@X-Envoy-Ip-Tags"), "200 ", "200 office"},
		"jwt-by-hand":        {tokenNeeded, "200 200", "401 200"},
		"listener-filter":    {countedBy(`http_inspector.http11_found`, seen(shop, "status")), "false", "true"},
		"listener-keepalive": {keepalive(corpusGateway+":8080", "127.0.0.1", func(c net.Conn) string { return raw(c, "GET / HTTP/1.1\r\nHost: shop.example.com\r\n\r\n") }), "none", "in 7200 s at most"},
		"lua-and-cluster":    {called, "no", "yes"},
		"proxy-protocol":     {seen(shop+" | From: 203.0.113.7", "status", "@X-Forwarded-For"), "400 ", "200 203.0.113.7"},
		"route-closed":       {several(seen(shop+"admin", "status"), seen(shop, "status")), "200 200", "403 200"},
		"route-hash":         {partOf("sticky=", seen(more, "Set-Cookie")), "", "sticky="},
		"routes-internal":    {seen(shop+" | X-Internal: 1", "status", "@X-Internal"), "200 1", "200 "},
		"vhost-headers":      {seen(shop, "Strict-Transport-Security", "X-Powered-By"), " go", "max-age=31536000 "},
	}
}

// partOf returns the part of a result that a regular expression matches.
func partOf(expression string, observe observation) observation {
	return func(t *testing.T, p *corpusProxy) string {
		return regexp.MustCompile(expression).FindString(observe(t, p))
	}
}

// several returns the results of observations, separated by spaces.
func several(observe ...observation) observation {
	return func(t *testing.T, p *corpusProxy) string {
		var out []string
		for _, o := range observe {
			out = append(out, o(t, p))
		}
		return strings.Join(out, " ")
	}
}

// after returns the result of an observation that follows another.
func after(first, then observation) observation {
	return func(t *testing.T, p *corpusProxy) string {
		first(t, p)
		return then(t, p)
	}
}

// statsOf returns whether there are statistics whose names match a regular expression.
func statsOf(names string) observation {
	return func(t *testing.T, p *corpusProxy) string { return yes(p.ask(t, "/stats?filter="+names) != "") }
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// clusterHosts returns the endpoints that the Envoy has.
func clusterHosts(t *testing.T, p *corpusProxy) string { return p.ask(t, "/clusters") }

// logged returns whether the Envoy has printed a text.
func logged(text string) observation {
	return func(t *testing.T, p *corpusProxy) string {
		b, err := os.ReadFile(p.output)
		if err != nil {
			t.Fatal(err)
		}
		return yes(strings.Contains(string(b), text))
	}
}

// http10 is a request without a host.
func http10(t *testing.T, p *corpusProxy) string {
	conn, err := p.dial("frontend:8080", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the answer is all
	return raw(conn, "GET / HTTP/1.0\r\n\r\n")
}

// echo asks a listener of its own.
func echo(t *testing.T, _ *corpusProxy) string {
	conn, err := net.Dial("tcp", corpusServer+":7777")
	if err != nil {
		return "refused"
	}
	defer func() { _ = conn.Close() }() // the answer is all
	return answered(t, conn)
}

// answered returns the echo of a connection.
func answered(t *testing.T, conn net.Conn) string {
	t.Helper()
	b := make([]byte, 4)
	if _, err := io.WriteString(conn, "echo"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return err.Error()
	}
	return string(b)
}

// idles waits for the end of a connection that nobody uses.
func idles(t *testing.T, p *corpusProxy) string {
	conn, err := p.dial("10.96.1.1:5432", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // the answer is all
	if got := answered(t, conn); got != "echo" {
		return got
	}
	if err := conn.SetReadDeadline(time.Now().Add(p.patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == io.EOF {
		return "closed"
	}
	return open
}

// session returns the status of an answer over mutual TLS for a name.
func session(name string) observation {
	return func(t *testing.T, p *corpusProxy) string {
		status, _ := p.handshake(t, name)
		return status
	}
}

// resumed returns for how many seconds a session can be resumed.
func resumed(t *testing.T, p *corpusProxy) string {
	_, lifetime := p.handshake(t, "frontend")
	return fmt.Sprint(lifetime)
}

// tokenNeeded returns the results without a token and with one.
func tokenNeeded(t *testing.T, p *corpusProxy) string {
	return several(seen("GET http://shop.example.com/api", "status"), seen("GET http://shop.example.com/api | Authorization: Bearer "+p.key.valid(), "status"))(t, p)
}

// called returns whether Lua called the service that it names.
func called(t *testing.T, p *corpusProxy) string {
	p.seen(t, "GET http://shop.example.com/", "status")
	got, _ := p.journal.of("")
	return yes(slices.ContainsFunc(got, func(a arrival) bool { return a.backend == "called" }))
}
