// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package telemetry

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

//go:generate go test -run ^TestLabelsDocument$ . -update

var update = flag.Bool("update", false, "write the table of labels again")

// meanings are what the formats of tags show, by their prefix.
var meanings = []struct{ format, meaning string }{
	{"%ENVIRONMENT(", "the proxy itself"},
	{"%UPSTREAM_METADATA(", "what the control plane knows of the endpoint"},
	{"%CLUSTER_METADATA(", "the service of the cluster; `PassthroughCluster`, `BlackHoleCluster`"},
	{"%UPSTREAM_LOCAL_URI_SAN%", "certificate of the proxy"},
	{"%UPSTREAM_PEER_URI_SAN%", "certificate of the server"},
	{"%DOWNSTREAM_LOCAL_URI_SAN%", "certificate of the proxy"},
	{"%DOWNSTREAM_PEER_URI_SAN%", "certificate of the client"},
	{"%FILTER_STATE(" + peerState + "namespace", "certificate of the client"},
	{"%FILTER_STATE(" + peerState, "headers that agree with its certificate; unknown of connections"},
	{"%FILTER_STATE(" + protocolState, "`http`, `grpc`; of connections `tcp`"},
	{"%RESPONSE_CODE%", "the status, 0 without a response; not of connections"},
	{"%GRPC_STATUS_NUMBER%", "the status of gRPC; not of connections"},
	{"%RESPONSE_FLAGS%", "flags of Envoy"},
}

// TestLabelsDocument compares the table of labels in docs/reference/metrics.md with the tags.
func TestLabelsDocument(t *testing.T) {
	t.Parallel()
	const path, begin, end = "../../../docs/reference/metrics.md", "<!-- labels: made by make generate -->\n", "<!-- end -->\n"
	shown := func(format string) string {
		for _, m := range meanings {
			if strings.HasPrefix(format, m.format) {
				return m.meaning
			}
		}
		if strings.Contains(format, "%") {
			t.Errorf("the format %s has no meaning", format)
		}
		return "`" + format + "`"
	}
	var want strings.Builder
	want.WriteString(begin + "| label | at the client | at the server |\n|---|---|---|\n")
	server := tagsOf(Chain{Server: &Server{MutualTLS: true, Host: "the service at the port", Name: "the service at the port", Namespace: "the service at the port"}}, false)
	for i, client := range tagsOf(Chain{}, false) {
		if client.name != server[i].name {
			t.Fatalf("label %d is %s at the client and %s at the server", i, client.name, server[i].name)
		}
		of := strings.ReplaceAll(shown(server[i].format), "`the service at the port`", "the service at the port")
		if client.name == "connection_security_policy" {
			of += ", `none`"
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", client.name, shown(client.format), of)
	}
	want.WriteString(end)
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(doc), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no lines %q and %q", path, begin, end)
	}
	if next := head + want.String() + tail; next == string(doc) {
		return
	} else if !*update {
		t.Errorf("%s differs from the code: run make generate", path)
	} else if err := os.WriteFile(path, []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
}
