// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
)

// certificate returns an untrusted certificate.
func certificate(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: until.Add(-time.Hour), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// proto responds with the version of HTTP.
func proto(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "HTTP/%d", r.ProtoMajor)
}

// TestRedirectsToOtherPorts redirects to other ports of the same host, which the kubelet follows.
func TestRedirectsToOtherPorts(t *testing.T) {
	t.Parallel()
	saw := &memory{}
	end := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		saw.note(r)
		coded(w, r)
	})
	plain, secure := listen(t, podIP), listen(t, podIP)
	serve(t, &http.Server{Handler: end}, plain)
	serve(t, &http.Server{Handler: end, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate(t, podIP, time.Now())}}}, secure)
	for name, c := range map[string]struct {
		to   string
		want verdict
	}{
		"to another port":              {"http://" + plain.Addr().String() + "/code/200", verdict{probe.Success, "body of /code/200"}},
		"to another port that is ill":  {"http://" + plain.Addr().String() + "/code/503", verdict{probe.Failure, "HTTP probe failed with statuscode: 503"}},
		"to TLS":                       {"https://" + secure.Addr().String() + "/code/200", verdict{probe.Success, "body of /code/200"}},
		"to TLS that is ill":           {"https://" + secure.Addr().String() + "/code/404", verdict{probe.Failure, "HTTP probe failed with statuscode: 404"}},
		"to another port of localhost": {"http://localhost:1/", verdict{probe.Warning, "Probe terminated redirects, Response body: "}},
	} {
		app := listen(t, podIP)
		serve(t, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", c.to)
			w.WriteHeader(http.StatusMovedPermanently)
		})}, app)
		action := corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(portOf(app)), HTTPHeaders: header("X-A", "1")}
		port := agent(t, podIP, map[string]corev1.Probe{"app": {ProbeHandler: corev1.ProbeHandler{HTTPGet: &action}}})
		straight := ask(t, action, podIP, ample)
		sawStraight := saw.take()
		through := ask(t, readyz("app", port, action.HTTPHeaders), podIP, ample)
		if straight != c.want || !same(straight, through) {
			t.Errorf("%s: direct: %v, through the agent: %v, want %v", name, straight, through, c.want)
		}
		if sawThrough := saw.take(); sawStraight != sawThrough {
			t.Errorf("%s: it saw direct:\n%s\nthrough the agent:\n%s", name, sawStraight, sawThrough)
		}
	}
}

func secured(t *testing.T) []httpCase {
	t.Helper()
	good := certificate(t, podIP, time.Now().Add(time.Hour))
	expired := certificate(t, podIP, time.Now().Add(-time.Hour))
	other := certificate(t, "other.example", time.Now().Add(time.Hour))
	with := func(c tls.Certificate, edit func(*tls.Config)) *tls.Config {
		cfg := &tls.Config{Certificates: []tls.Certificate{c}, NextProtos: []string{"h2", "http/1.1"}}
		if edit != nil {
			edit(cfg)
		}
		return cfg
	}
	return []httpCase{
		{name: "HTTP/2", secure: with(good, nil), handler: proto, want: probe.Success, class: "HTTP/2"},
		{name: "HTTP/1 over TLS", secure: with(good, nil), http1: true, handler: proto, want: probe.Success, class: "HTTP/1"},
		{name: "an expired certificate", secure: with(expired, nil), handler: mirror, want: probe.Success},
		{name: "a certificate of another", secure: with(other, nil), handler: mirror, want: probe.Success},
		{name: "HTTP/2 with headers", secure: with(good, nil), headers: header("Host", "shop.example", "X-A", "1", "X-A", "2"), handler: mirror, want: probe.Success},
		{name: "HTTP/2 with a failure", secure: with(good, nil), path: "/code/503", handler: coded, want: probe.Failure, class: "HTTP probe failed with statuscode: 503"},
		{name: "HTTP/2 with a big body", secure: with(good, nil), want: probe.Success, handler: bodies[5].handler, class: bodies[5].class},
		{name: "HTTP/2 with a stream that breaks off", secure: with(good, nil), want: probe.Failure, class: "error", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "fi")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{name: "HTTP/2 without an answer", secure: with(good, nil), want: probe.Failure, class: "no answer", handler: func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}},
		{name: "HTTP/2 with a slow body", secure: with(good, nil), timeout: patience, want: probe.Failure, class: "error: timeout", handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "fi")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{name: "a redirect over TLS", secure: with(good, nil), path: "/relative", handler: redirecting, want: probe.Success},
		{name: "a redirect from TLS to none", secure: with(good, nil), path: "/absolute", handler: redirecting, want: probe.Failure, class: "HTTP probe failed with statuscode: 400"},
		{name: "a client certificate wanted", handler: mirror, want: probe.Failure, class: "no answer", secure: with(good, func(cfg *tls.Config) { cfg.ClientAuth = tls.RequireAnyClientCert })},
		{name: "old TLS", handler: mirror, want: probe.Failure, class: "no answer", secure: with(good, func(cfg *tls.Config) {
			cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		})},
		{name: "TLS 1.2", secure: with(good, func(cfg *tls.Config) { cfg.MaxVersion = tls.VersionTLS12 }), handler: mirror, want: probe.Success},
		{name: "TLS asked without", secure: with(good, nil), scheme: corev1.URISchemeHTTP, handler: mirror, want: probe.Failure, class: "HTTP probe failed with statuscode: 400"},
		{name: "TLS asked of none", scheme: corev1.URISchemeHTTPS, handler: mirror, want: probe.Failure, class: "no answer"},
		{name: "TLS that does not begin", scheme: corev1.URISchemeHTTPS, raw: hold(""), timeout: patience, want: probe.Failure, class: "timeout"},
		{name: "TLS that ends", scheme: corev1.URISchemeHTTPS, raw: answer(""), want: probe.Failure, class: "no answer"},
		{name: "TLS that is reset", scheme: corev1.URISchemeHTTPS, raw: func(conn net.Conn) { reset("")(conn) }, want: probe.Failure, class: "no answer"},
	}
}
