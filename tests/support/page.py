"""What tests of the page share: ways to read it, to click on it, and to take it apart."""

import json


def texts(chrome, selector):
    return [" ".join(node.text.split()) for node in chrome.find_elements("css selector", selector)]


def methods(chrome):
    return [row.get_attribute("data-method") for row in chrome.find_elements("css selector", "table.main tbody tr")]


def click(chrome, selector):
    node = chrome.find_element("css selector", selector)
    chrome.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    node.click()


def alternatives(chrome):
    return [node.get_attribute("aria-label") for node in chrome.find_elements("css selector", "svg.chart, canvas")]


def taken_apart(text):
    """Return what is before a page's data, the data, and what is after."""
    start = text.index('id="data">') + len('id="data">')
    end = text.index("</script>", start)
    return text[:start], json.loads(text[start:end]), text[end:]
