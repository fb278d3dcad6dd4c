// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// webhookAttacks attack the port that the API server calls and that anyone can reach.
func webhookAttacks() []attack {
	return []attack{
		{"flood by a stranger", "the webhook of the API server: silent connections, headers and bodies that never end, giant bodies, deep JSON, and bodies of other types", "small objects are checked meanwhile; memory grows by less than 500 MB, the log by less than 200 lines", floodWebhook},
	}
}

// nowhere is the kubeconfig of an unreachable cluster: the webhook requires a cluster but does not
// contact it.
const nowhere = `apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://ADDRESS:1"}}]
users: [{name: none, user: {}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
`

// webhookPlane runs a control plane with a cluster, and returns the URL of its webhook.
func (s *suite) webhookPlane() (*process, string, error) {
	dir, err := s.folder("webhook")
	if err != nil {
		return nil, "", err
	}
	ip := s.address()
	cluster, settings := filepath.Join(dir, "cluster.yaml"), filepath.Join(dir, "settings.yaml")
	if err := write(cluster, strings.ReplaceAll(nowhere, "ADDRESS", ip), 0o600); err != nil {
		return nil, "", err
	}
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		return nil, "", err
	}
	if err := write(settings, fmt.Sprintf("configSources: [{address: %q}]\n", "fs://"+filepath.Join(dir, "config")), 0o644); err != nil {
		return nil, "", err
	}
	p, err := start(spec{
		path: filepath.Join(s.bin, "outrigger-control"), dir: dir,
		args: []string{
			"discovery", "--meshConfig", settings, "--kubeconfig", cluster, "--grpcAddr", "", "--secureGRPCAddr", ip + ":15012",
			"--httpAddr", ip + ":8080", "--monitoringAddr", ip + ":15014", "--httpsAddr", ip + ":15017",
		},
		env: []string{"OUTRIGGER_STATE_DIR=" + filepath.Join(dir, "state"), "POD_NAMESPACE=istio-system"},
	})
	return p, ip + ":15017", err
}

const question = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","kind":{"group":"networking.istio.io","version":"v1","kind":"WorkloadEntry"},"namespace":"shop","name":"x","object":OBJECT}}`

// askWebhook returns an error unless a small object is validated.
func askWebhook(ctx context.Context, address string) error {
	body := strings.ReplaceAll(question, "OBJECT", `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"x","namespace":"shop"},"spec":{"address":"10.0.0.1"}}`)
	code, text, err := postWebhook(ctx, address, "application/json", strings.NewReader(body))
	if err == nil && (code != http.StatusOK || !strings.Contains(text, `"allowed":true`)) {
		err = fmt.Errorf("the webhook answers %d: %.200s", code, text)
	}
	return err
}

func postWebhook(ctx context.Context, address, kind string, body io.Reader) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/validate", body)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Content-Type", kind)
	return send(&http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}, req) //nolint:gosec // the attacker does not care who answers
}

func floodWebhook(ctx context.Context, s *suite) (outcome, error) {
	p, address, err := s.webhookPlane()
	if err != nil {
		return outcome{}, err
	}
	defer p.Kill()
	if err := eventually(ctx, func() error { return askWebhook(ctx, address) }); err != nil {
		return outcome{}, fmt.Errorf("%w: %s", err, p.LastWords())
	}
	before, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	p.resetPeak()
	err = during(ctx, func(ctx context.Context) error {
		_, end := openConnections(ctx, address, s.some(600, 100))
		defer end()
		many(s.some(300, 60), func(i int) { halfBody(ctx, address, i) })
		bodies := []string{
			strings.Repeat("[", 5<<20), strings.Repeat(`{"a":`, 1<<20), strings.ReplaceAll(question, "OBJECT", strings.Repeat("[", 5<<20)),
			strings.ReplaceAll(question, "OBJECT", `{"metadata":{"labels":{`+strings.Repeat(`"a":"b",`, 370_000)+`"c":"d"}}}`), strings.Repeat("x", 20<<20),
		}
		many(s.some(60, 5), func(i int) {
			kind := []string{"application/json", "application/yaml", "application/json; charset=utf-16"}[i%4%3]
			_, _, _ = postWebhook(ctx, address, kind, strings.NewReader(bodies[i%len(bodies)])) // rejected
		})
		return nil
	}, func(ctx context.Context) error { return askWebhook(ctx, address) })
	if err != nil {
		return outcome{}, err
	}
	after, err := p.usage()
	if err != nil {
		return outcome{}, err
	}
	c := costOf(before, after)
	return c.within("objects were checked; "+c.String(), after.logged-before.logged, tenantMemory)
}

// halfBody sends most of a request, or of its header, and waits for a while.
func halfBody(ctx context.Context, address string, i int) {
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // as above
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return // the server accepts no more, which it may do
	}
	defer func() { _ = conn.Close() }()                    // the peer may have closed it
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // cannot fail on an open connection
	head := "POST /validate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	switch i % 8 {
	case 0:
		_, _ = io.WriteString(conn, head) // the rest is never sent
	case 1:
		_, _ = io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\n")
		for range 6 {
			_, _ = io.WriteString(conn, "100000\r\n"+strings.Repeat("x", 1<<20)+"\r\n")
		}
	default:
		const size = 6<<20 - 1
		_, _ = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n", head, size)
		_, _ = conn.Write(bytes.Repeat([]byte("x"), size-1))
	}
	linger(ctx)
}
