package cli

import (
	"io"
	"strings"
	"testing"

	"carob/internal/base/imageapi"
)

// Lists are printed as kubectl prints them: with headers, without, with more columns, or as names, one a line.
func TestTables(t *testing.T) {
	list := imageapi.List{Images: []imageapi.Image{
		{ID: "sha256:0123456789abcdef", Tags: []string{"a:1", "b:1"}, Digests: []string{"a@sha256:1"}, Size: 1500000,
			Pinned: true},
		{ID: "sha256:fedcba9876543210"}}}
	var names []string
	for _, im := range list.Images {
		names = append(names, imageNames(im)...)
	}
	for _, c := range []struct {
		of   table
		want string
	}{
		{table{}, "IMAGE ID SIZE\na:1 0123456789ab 1.5 MB\nb:1 0123456789ab 1.5 MB\n<none> fedcba987654 0.0 MB\n"},
		{table{noHeaders: true}, "a:1 0123456789ab 1.5 MB\nb:1 0123456789ab 1.5 MB\n<none> fedcba987654 0.0 MB\n"},
		{table{output: "wide"}, "IMAGE ID SIZE PINNED DIGEST\na:1 0123456789abcdef 1.5 MB true a@sha256:1\n" +
			"b:1 0123456789abcdef 1.5 MB true a@sha256:1\n<none> fedcba9876543210 0.0 MB false\n"},
		{table{output: "name"}, "a:1\nb:1\nsha256:fedcba9876543210\n"},
	} {
		var b strings.Builder
		human := func(w io.Writer) error { return printImages(w, &c.of, list) }
		if err := c.of.print(&b, list, names, human); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for line := range strings.Lines(b.String()) {
			got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		if got.String() != c.want {
			t.Errorf("%+v:\n%s, want\n%s", c.of, got.String(), c.want)
		}
	}
}
