// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/prometheus/common/expfmt"
)

// Format is one of the formats of Prometheus.
type Format struct {
	kind kind
	// contentType is the whole media type, with version and escaping.
	contentType string
}

type kind int

const (
	text kind = iota
	openMetrics
	protobuf
)

// Negotiate returns the format that the Accept header of a scraper asks for;
// text, when it names none that is spoken here.
func Negotiate(header http.Header) Format {
	// Text first, for clients that accept anything: they are browsers and curl.
	accepted := []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), expfmt.NewFormat(expfmt.TypeProtoDelim)}
	for _, version := range []string{expfmt.OpenMetricsVersion_1_0_0, expfmt.OpenMetricsVersion_0_0_1} {
		if f, err := expfmt.NewOpenMetricsFormat(version); err == nil {
			accepted = append(accepted, f)
		}
	}
	f := expfmt.NegotiateAccept(header, accepted...)
	format := Format{contentType: string(f)}
	switch f.FormatType() {
	case expfmt.TypeProtoDelim:
		format.kind = protobuf
	case expfmt.TypeOpenMetrics:
		format.kind = openMetrics
	}
	return format
}

// ContentType is the media type of an answer in this format.
func (f Format) ContentType() string { return f.contentType }

// Accept is what to ask a source for, so that least is lost on the way into
// this format.
func (f Format) Accept() string {
	escaping := ""
	if _, params, err := mime.ParseMediaType(f.contentType); err == nil && params["escaping"] != "" {
		escaping = ";escaping=" + params["escaping"]
	}
	const (
		proto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
		om    = "application/openmetrics-text;version=1.0.0"
		plain = "text/plain;version=0.0.4"
	)
	ask := func(formats ...string) string {
		for i := range formats {
			formats[i] += fmt.Sprintf("%s;q=0.%d", escaping, 9-2*i)
		}
		return strings.Join(append(formats, "*/*;q=0.1"), ",")
	}
	switch f.kind {
	case protobuf:
		return ask(proto, plain)
	case openMetrics:
		return ask(om, plain)
	default:
		return ask(plain, om)
	}
}

// kindOf reads the Content-Type of a source. Most that name none mean text.
func kindOf(contentType string) (kind, error) {
	name, params, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "", name == "text/plain", name == "" && err != nil:
		return text, nil
	case name == "application/openmetrics-text":
		return openMetrics, nil
	case name == "application/vnd.google.protobuf" && params["encoding"] == "delimited":
		return protobuf, nil
	}
	return text, fmt.Errorf("it answered with %q, which is no format of metrics that is known here", contentType)
}
