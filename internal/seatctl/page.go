package seatctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi/web"
)

type pageCommand struct {
	Export pageExportCommand `cmd:"" help:"Write the booking page and the result page into a folder."`
}

type pageExportCommand struct {
	Dir  string `arg:"" help:"Folder to write into; it is made if it is not there."`
	Sale string `help:"Sale file (YAML) to make the pages of, without asking any deployment. Without it the sale in force." placeholder:"FILE"`
	JSON bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*pageExportCommand) Help() string {
	return `Writes the two pages of the sale, the same bytes as the API serves: index.html for the
address / and result for the address /result. They hold the sale's title, its levels and
fees and nothing of any booking, so they are written again when those change; caps,
figures, opening and closing do not touch them.

In S3 the second object's key is "result", without a suffix, so that CloudFront finds
it under /result; its type must be said, or browsers save it as a file:
  aws s3 cp DIR/index.html s3://BUCKET/index.html \
    --content-type 'text/html; charset=utf-8' --cache-control 'public, max-age=20'
  aws s3 cp DIR/result s3://BUCKET/result \
    --content-type 'text/html; charset=utf-8' --cache-control 'public, max-age=20'
In CloudFront: index.html as default root object; compression on (the pages are stored
as they are, and S3 gives them a tag of its own); the query string neither in the cache
key nor forwarded, since it holds a candidate's token; and a response headers policy
with the headers that are printed. A corrected page is everywhere within a minute,
without an invalidation.

Each file appears whole or not at all, and writing again is safe. A file of either
name that is none of these pages is not written over. Nothing of the deployment is
changed.

Exit status: 0 written; 1 refused: no sale is in force, the sale file is wrong, or
somebody else's file has the name; 2 it could not be run.

Example:
  seatctl page export page/ --sale sale.yaml`
}

// exportedPage is a written page, and how it is to be served.
type exportedPage struct {
	File         string `json:"file"`
	Path         string `json:"path"`
	Bytes        int    `json:"bytes"`
	Compressed   int    `json:"compressed_bytes"`
	ContentType  string `json:"content_type"`
	CacheControl string `json:"cache_control"`
	ETag         string `json:"etag"`
}

// exportedPages is what the command tells.
type exportedPages struct {
	Sale    string         `json:"sale"`
	Files   []exportedPage `json:"files"`
	Headers []web.Header   `json:"headers"`
	// Unreviewed are the languages whose words no speaker has read yet.
	Unreviewed []web.Language `json:"unreviewed"`
}

// Run is the command.
func (c *pageExportCommand) Run(s *session) error {
	sale, err := c.sale(s)
	if err != nil {
		return err
	}
	site, err := web.Build(sale)
	if err != nil {
		return fmt.Errorf("build the pages: %w", err)
	}
	fmt.Fprintf(s.stderr, "This writes the pages of sale %s into %s.\n", sale.Name, c.Dir)
	files, err := exportPages(c.Dir, site.Files())
	if err != nil {
		return err
	}
	out := exportedPages{Sale: sale.Name, Files: files, Headers: web.SecurityHeaders(), Unreviewed: append([]web.Language{}, web.Unreviewed()...)}
	for _, l := range out.Unreviewed {
		fmt.Fprintf(s.stderr, "Warning: nobody who speaks the language has reviewed the texts in %q: have them read before the sale.\n", l)
	}
	if c.JSON {
		return s.printJSON(out)
	}
	return s.printPages(out)
}

// sale is the file's, or the one in force.
func (c *pageExportCommand) sale(s *session) (_ booking.Sale, err error) {
	if c.Sale != "" {
		return readSaleFile(c.Sale)
	}
	o, err := s.open(false)
	if err != nil {
		return booking.Sale{}, err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	sale, err := o.Gate.Sale(s.ctx)
	if errors.Is(err, booking.ErrNotFound) {
		return booking.Sale{}, wrong(errors.New("no sale is in force: apply one with seatctl sale apply, or give --sale FILE"))
	}
	return sale, err
}

// exportPages writes the pages, all of whose places are looked at before the first.
func exportPages(dir string, pages []web.File) ([]exportedPage, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, f := range pages {
		if err := replaceable(filepath.Join(dir, f.Name)); err != nil {
			return nil, err
		}
	}
	var written []exportedPage
	for _, f := range pages {
		path := filepath.Join(dir, f.Name)
		if err := replaceFile(path, f.Body); err != nil {
			return nil, fmt.Errorf("write page %s: %w", path, err)
		}
		written = append(written, exportedPage{
			File: path, Path: f.Path, Bytes: len(f.Body), Compressed: len(f.Gzip),
			ContentType: f.ContentType, CacheControl: f.CacheControl, ETag: f.ETag,
		})
	}
	return written, nil
}

// replaceable refuses a place where something lies that is no page of ours.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var old []byte
	if info.Mode().IsRegular() {
		if old, err = os.ReadFile(path); err != nil {
			return err
		}
	}
	if !web.Ours(old) {
		return wrong(fmt.Errorf("%s is there and is no page of Holdfast's: name another folder, or move it away", path))
	}
	return nil
}

// replaceFile puts a whole file in the place of another, or leaves that. The file is
// for everybody to read: so is the page.
func replaceFile(path string, body []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (s *session) printPages(out exportedPages) error {
	tw := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "file\taddress\tbytes\tcompressed\tcontent type\tcache control\tetag")
	for _, f := range out.Files {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", f.File, f.Path, f.Bytes, f.Compressed, f.ContentType, f.CacheControl, f.ETag)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(s.stdout, "\nHeaders that whoever serves them must add:")
	for _, h := range out.Headers {
		fmt.Fprintf(s.stdout, "  %s: %s\n", h.Name, h.Value)
	}
	return nil
}
