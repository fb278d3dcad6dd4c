// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package expression

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
)

// command is what may follow the name of a substitution command.
type command struct {
	// since is the minor version of the first Envoy that has the command; 0 means all supported ones.
	// An argument may need a newer one.
	since, argumentSince int
	// not is where the command is unknown: in access logs or in headers.
	not place
	// argument matches the argument; nil means that there is none. Without is true if the argument
	// may be missing.
	argument *regexp.Regexp
	without  bool
	// shortened is true if a maximum length may follow.
	shortened bool
}

// place is where a format is used.
type place int

const (
	_ place = iota
	logs
	headers
)

// newer are the commands without an argument that not all supported Envoys have, by the minor version
// of the first Envoy that has them.
var newer = map[int]string{
	37: "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID",
	38: "DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL" +
		" SPAN_ID UPSTREAM_CONNECTION_IDS_ATTEMPTED UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT" +
		" UPSTREAM_HOST_NAMES_ATTEMPTED UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT UPSTREAM_LOCAL_CLOSE_REASON",
	39: "DOWNSTREAM_TLS_GROUP UPSTREAM_SERVER_NAME UPSTREAM_TLS_GROUP",
	40: "DOWNSTREAM_CX_RTT LISTENER_NAME ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US",
}

// plain are the commands without an argument that all supported Envoys have.
const plain = `
ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS CUSTOM_FLAGS
DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT DOWNSTREAM_DIRECT_LOCAL_ADDRESS
DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS
DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_PORT DOWNSTREAM_HANDSHAKE_DURATION
DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT
DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT
DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1
DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN DOWNSTREAM_PEER_EMAIL_SAN
DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER
DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_REMOTE_ADDRESS
DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_SESSION_ID
DOWNSTREAM_TLS_VERSION DOWNSTREAM_TRANSPORT_FAILURE_REASON DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION
FILTER_CHAIN_NAME GRPC_STATUS_NUMBER HOSTNAME LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PROTOCOL REQUESTED_SERVER_NAME
REQUEST_DURATION REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS RESPONSE_FLAGS_LONG
RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION ROUNDTRIP_DURATION ROUTE_NAME STREAM_ID TLS_JA3_FINGERPRINT
TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID
UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST UPSTREAM_HOST_NAME UPSTREAM_HOST_NAME_WITHOUT_PORT
UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_LOCAL_DNS_SAN UPSTREAM_LOCAL_IP_SAN UPSTREAM_LOCAL_PORT
UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT
UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT UPSTREAM_REMOTE_PORT
UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_TLS_CIPHER UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION UPSTREAM_TRANSPORT_FAILURE_REASON
UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME
`

// headerNames matches the name of a header, and perhaps that of another one to use without it.
var headerNames = regexp.MustCompile("^:?[a-zA-Z0-9!#$%&'*+.^_|~`-]+([?]:?[a-zA-Z0-9!#$%&'*+.^_|~`-]+)?$")

// table has all commands that some supported Envoy has, by name.
var table = sync.OnceValue(commands)

func commands() map[string]command {
	one := regexp.MustCompile(`^[^)]+$`)
	out := map[string]command{
		"CEL":             {argument: regexp.MustCompile(`.`), shortened: true},
		"COMMON_DURATION": {argument: regexp.MustCompile(`^[A-Za-z_.-]+:[A-Za-z_.-]+:(ms|us|ns)$`)},
		"GRPC_STATUS":     {argument: regexp.MustCompile(`^(CAMEL_STRING|SNAKE_STRING|NUMBER)$`), without: true},
		"METADATA":        {argument: regexp.MustCompile(`^(DYNAMIC|CLUSTER|ROUTE|UPSTREAM_HOST|LISTENER|VIRTUAL_HOST):`), shortened: true},
		"PATH":            {argument: regexp.MustCompile(`^(WQ|NQ)(:(ORIG|PATH|ORIG_OR_PATH))?$`), without: true, shortened: true},
	}
	out["TYPED_CEL"] = out["CEL"]
	for name := range strings.FieldsSeq("REQ RESP TRAILER") {
		out[name] = command{argument: headerNames, shortened: true}
	}
	out["REQ_WITHOUT_QUERY"] = command{argument: headerNames, shortened: true, not: headers}
	for name := range strings.FieldsSeq("REQUEST_HEADER RESPONSE_HEADER RESPONSE_TRAILER") {
		out[name] = command{argument: headerNames, shortened: true, since: 37}
	}
	for name := range strings.FieldsSeq("FILTER_STATE UPSTREAM_FILTER_STATE") {
		out[name] = command{argument: regexp.MustCompile(`^[^:)]+(:(PLAIN|TYPED|FIELD:[^)]+))?$`), shortened: true}
	}
	for name := range strings.FieldsSeq(plain) {
		out[name] = command{without: true}
	}
	for since, names := range newer {
		for name := range strings.FieldsSeq(names) {
			out[name] = command{without: true, since: since}
		}
	}
	for name := range strings.FieldsSeq("DOWNSTREAM_DIRECT_LOCAL DOWNSTREAM_DIRECT_REMOTE DOWNSTREAM_LOCAL DOWNSTREAM_REMOTE UPSTREAM_LOCAL UPSTREAM_REMOTE") {
		out[name+"_ADDRESS_WITHOUT_PORT"] = command{argument: regexp.MustCompile(`^(12[0-8]|1[01][0-9]|[1-9]?[0-9])$`), without: true, argumentSince: 38}
	}
	out["QUERY_PARAMS"] = command{argument: regexp.MustCompile(`^ORIG$`), without: true, shortened: true, since: 38}
	out["PER_REQUEST_STATE"] = command{argument: regexp.MustCompile(`^[A-Za-z0-9_.-]+$`), not: logs}
	for name := range strings.FieldsSeq("DOWNSTREAM_PEER_CERT_V_END DOWNSTREAM_PEER_CERT_V_START EMIT_TIME EMIT_TIME_LOCAL RESPONSE_CODE_DETAILS START_TIME START_TIME_LOCAL UPSTREAM_PEER_CERT_V_END UPSTREAM_PEER_CERT_V_START") {
		out[name] = command{argument: regexp.MustCompile(`.`), without: true}
	}
	for name := range strings.FieldsSeq("CLUSTER_METADATA DYNAMIC_METADATA UPSTREAM_METADATA") {
		out[name] = command{argument: one}
	}
	out["QUERY_PARAM"] = command{argument: one, shortened: true}
	// Routes of one namespace are those of proxies of others, too, whose variables are their own.
	out["ENVIRONMENT"] = command{argument: one, shortened: true, not: headers}
	return out
}

// inFormat matches a command at the beginning of a text: its name, argument and length.
var inFormat = regexp.MustCompile(`^%([A-Z0-9_]+)(?:(\(.*?\)))?(:[0-9]{1,5})?%`)

// CheckFormat returns an error if an Envoy would refuse a format of access logs. Its text names the
// command and the cure.
func CheckFormat(text string) error {
	since, name, err := check(text, logs)
	if err == nil && since > 0 {
		err = fmt.Errorf("%s is no command of all supported Envoys: use another, or write %%%% for a percent sign", field.Quote(name))
	}
	return err
}

// Header returns the minor version of the first Envoy that has all commands in the value of a header, 0
// if all supported ones do, and the command that needs it. It returns an error if none has them.
func Header(value string) (since int, name string, err error) { return check(value, headers) }

// check returns the minor version that the commands of a text need, and the first that needs it.
func check(text string, at place) (since int, newest string, err error) {
	if !strings.Contains(text, "%") {
		return 0, "", nil
	}
	known := table()
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			return since, newest, nil
		}
		text = text[i:]
		if strings.HasPrefix(text, "%%") {
			text = text[2:]
			continue
		}
		m := inFormat.FindStringSubmatch(text)
		if m == nil {
			return 0, "", fmt.Errorf("no command of Envoy starts at %s: write %%%% for a percent sign", field.Quote(text))
		}
		c, ok := known[m[1]]
		if !ok || c.not == at {
			return 0, "", fmt.Errorf("%s is no command of the supported Envoys: use another, or write %%%% for a percent sign", field.Quote(m[0]))
		}
		if err := c.check(m); err != nil {
			return 0, "", err
		}
		if at == headers && strings.HasSuffix(m[1], "CEL") && strings.Contains(m[2], "xds") {
			return 0, "", fmt.Errorf("the expression in %s reads xds, which is about the proxy: use attributes of the request or the response", field.Quote(m[0]))
		}
		needs := c.since
		if m[2] != "" {
			needs = max(needs, c.argumentSince)
		}
		if needs > since {
			since, newest = needs, m[0]
		}
		text = text[len(m[0]):]
	}
}

// maxNesting is how deep labels nest at most. Envoy reads messages of 100 levels, of which each level
// of a label takes three.
const maxNesting = 20

// check returns an error if a command takes no such argument or length. The match is that of
// [inFormat].
func (c command) check(m []string) error {
	argument := strings.TrimSuffix(strings.TrimPrefix(m[2], "("), ")")
	switch {
	case m[2] == "" && !c.without:
		return fmt.Errorf("%s lacks its argument: write it in brackets behind the name", field.Quote(m[0]))
	case m[2] != "" && (c.argument == nil || !c.argument.MatchString(argument)):
		return fmt.Errorf("%s has an argument that the command does not take: correct or remove it", field.Quote(m[0]))
	case m[3] != "" && !c.shortened:
		return fmt.Errorf("%s has a length, which the command does not take: remove it", field.Quote(m[0]))
	}
	if m[1] == "CEL" || m[1] == "TYPED_CEL" {
		if err := Check(argument); err != nil {
			return fmt.Errorf("the expression in %s is %w", field.Quote(m[0]), err)
		}
	}
	return nil
}

// CheckLabels is like [CheckFormat] for the values of labels, also nested ones. The text of the error
// begins with the path of the label.
func CheckLabels(labels map[string]any) error {
	for name, value := range field.Sorted(labels) {
		if err := checkLabel(value, 1); errors.Is(err, errNesting) {
			return fmt.Errorf("[%q]: %w", name, err)
		} else if err != nil {
			return fmt.Errorf("[%q] is %v: %w", name, value, err)
		}
	}
	return nil
}

var errNesting = fmt.Errorf("nested deeper than the %d levels that labels may have: write fewer levels", maxNesting)

func checkLabel(value any, level int) error {
	if level > maxNesting {
		return errNesting
	}
	switch v := value.(type) {
	case string:
		return CheckFormat(v)
	case map[string]any:
		for _, inner := range field.Sorted(v) {
			if err := checkLabel(inner, level+1); err != nil {
				return err
			}
		}
	case []any:
		for _, inner := range v {
			if err := checkLabel(inner, level+1); err != nil {
				return err
			}
		}
	}
	return nil
}
