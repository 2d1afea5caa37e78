package main

import (
	"fmt"
	"os"
	"strings"
)

// A request is one part of a file of cases:
//
//	### what it shows
//	# differs: why, if it may
//	# ignore: PATH-PREFIX          a part of the body that isn't compared; "body" is all of it
//	# text: yes                    the body is compared as text
//	# until: TEXT                  a watch is read until an event has this text (else until it ends)
//	PATCH /api/v1/namespaces/$NS/configmaps/a?dryRun=All
//	Content-Type: application/merge-patch+json
//
//	{"data": {"a": "$rv"}}
//	> rv = metadata.resourceVersion
//
// $NS is the namespace of the file, $X its suffix for what has no namespace; `> name = path` keeps a field of the
// answer for the requests that follow, `> name = header Etag` a header. A body that isn't JSON is sent as it is.
type request struct {
	name, method, path, body, differs, until string
	text                                     bool
	allocates                                bool // the answer has addresses, ports, or names that the server chooses
	header                                   [][2]string
	ignore                                   []string
	keep                                     [][2]string
	line                                     int
}

func parse(file string) ([]request, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []request
	var now *request
	name := ""
	state := 0 // 0 before a request line, 1 headers, 2 body
	for i, line := range strings.Split(string(content), "\n") {
		if title, ok := strings.CutPrefix(line, "###"); ok {
			name, now, state = strings.TrimSpace(title), nil, 0
			continue
		}
		if state == 0 {
			if strings.TrimSpace(line) == "" {
				continue
			}
			if now == nil {
				all = append(all, request{name: name, line: i + 1})
				now = &all[len(all)-1]
			}
			if comment, ok := strings.CutPrefix(line, "# "); ok {
				switch key, value, _ := strings.Cut(comment, ": "); key {
				case "differs":
					now.differs = value
				case "ignore":
					now.ignore = append(now.ignore, value)
				case "text":
					now.text = true
				case "until":
					now.until = value
				}
				continue
			}
			var ok bool
			if now.method, now.path, ok = strings.Cut(line, " "); !ok {
				return nil, fmt.Errorf("%s:%d: not METHOD PATH: %s", file, i+1, line)
			}
			now.line, state = i+1, 1
			continue
		}
		if kept, ok := strings.CutPrefix(line, "> "); ok {
			to, from, ok := strings.Cut(kept, " = ")
			if !ok {
				return nil, fmt.Errorf("%s:%d: not > NAME = PATH: %s", file, i+1, line)
			}
			now.keep = append(now.keep, [2]string{to, from})
			continue
		}
		if state == 1 {
			if line == "" {
				state = 2
				continue
			}
			key, value, ok := strings.Cut(line, ": ")
			if !ok {
				return nil, fmt.Errorf("%s:%d: not a header: %s", file, i+1, line)
			}
			now.header = append(now.header, [2]string{key, value})
			continue
		}
		now.body += line + "\n"
	}
	for i := range all {
		all[i].body = strings.TrimSpace(all[i].body)
	}
	return all, nil
}
